"""Pools as the trainers take them: one module a library, each needing that library and nothing else of the others.

Importing this package imports none of them. What a trainer should watch for is in `docs/trainers.md`.
"""
