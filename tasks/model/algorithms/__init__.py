"""The algorithm contract, the algorithms, one readable file each, and how custom ones are found and checked.

Algorithm modules import torch, `tasks.model.nn` and `tasks.specs`, and nothing that knows a rank, a file or a cluster.
"""
