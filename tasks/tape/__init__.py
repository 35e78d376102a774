"""Differentiates losses: a tape of kernels' calls, and programs that compute them again for other rows."""
