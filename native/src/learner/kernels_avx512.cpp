#define LANES 16
#define ROWS_AT_ONCE 12
#define TABLE avx512_kernels
#define NAME "avx512"
#include "kernels.inl"
