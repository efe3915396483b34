/* The C ABI under the name that programs and sources of kernels include it by. */
#include "abi/kernel.h"
