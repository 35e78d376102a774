"""Environments that other libraries step, behind the pool's interface."""
