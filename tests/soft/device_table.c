/* The table, as the real library has it. */
#include "kernels/cuda/device_table.cu"
