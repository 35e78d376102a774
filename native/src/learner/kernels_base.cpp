#define LANES 4
#define ROWS_AT_ONCE 6
#define TABLE base_kernels
#define NAME "base"
#include "kernels.inl"
