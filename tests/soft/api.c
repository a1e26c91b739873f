/* The table, as the real library has it. */
#include <cuda/api.cu>
