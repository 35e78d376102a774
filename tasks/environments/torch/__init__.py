"""Implements pools whose environments lie in tensors on a device, stepped as one batch by the pool's own kernels."""
