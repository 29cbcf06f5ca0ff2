// What all tests of kernels include, compiled once for them.
#include "tests/kernels/kernel_test.h"
