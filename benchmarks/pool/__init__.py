"""Stepping environments: the native pool and adapters, next to the libraries that they are compared with."""
