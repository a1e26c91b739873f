/* The table, as the real library has it. */
#include "kernels/cuda/api.cu"
