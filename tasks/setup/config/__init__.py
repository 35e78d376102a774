"""Typed settings of a run, from presets, TOML files and command-line overrides.

`run` holds the root models, `loading` builds and validates them. Imports no torch.
"""
