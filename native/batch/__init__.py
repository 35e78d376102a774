"""Steps batches of environments in arrays that the caller owns, on a CPU or a GPU, with kernels from one C++ text.

`host.host_kernels` has those that every pool's environment was compiled with; `cuda.cuda_kernels` compiles the same
headers for a GPU. A batch has no autoreset mode, no seeds and no checks of its arrays:
`penstock.tasks.environments.torch` makes a pool of one.
"""
