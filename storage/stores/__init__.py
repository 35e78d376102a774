"""Gives object stores one small protocol: local folders, S3 through two clients, any fsspec file system.

`open.open_store` opens one by its address; `probe` tests what it guarantees.
"""
