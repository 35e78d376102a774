"""Typed settings of the algorithms, one file each; nothing here imports torch, unlike the algorithms themselves."""
