// Error checks of cuBLASLt, in the style of CUDA_CHECK.
#pragma once
#include <cublasLt.h>

#include "core/error.h"

/// Throws Error with file, line and cuBLAS's name of the error.
#define CUBLAS_CHECK(call)                                                                    \
  do {                                                                                        \
    if (const cublasStatus_t status_ = (call); status_ != CUBLAS_STATUS_SUCCESS) [[unlikely]] \
      ::loqal::fail(::loqal::cat(__FILE__, ":", __LINE__, ": ", #call, ": ",                  \
                                 cublasLtGetStatusString(status_)));                          \
  } while (0)
