#define LANES 8
#define ROWS_AT_ONCE 6
#define TABLE avx2_kernels
#define NAME "avx2"
#include "kernels.inl"
