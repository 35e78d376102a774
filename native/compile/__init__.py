"""Compiles and loads custom environments, and explains the compiler's errors."""
