// libcublasLt is half a gigabyte: linked in, it would cost every run of ./train, on the CPU too,
// 0.7 s and 200 MiB (measured). So it is opened when a CudaOps is made, and its functions, those
// that are used, are these.
#include <cublasLt.h>
#include <dlfcn.h>

#include "core/error.h"

namespace {

#define LOQAL_TEXT_(x) #x
#define LOQAL_TEXT(x) LOQAL_TEXT_(x)

// The function of that name in the library.
template <class F>
F* find(const char* name) {
  constexpr const char* file = "libcublasLt.so." LOQAL_TEXT(CUBLAS_VER_MAJOR);
  static void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    loqal::fail(loqal::cat("cannot load ", file, ": ", dlerror()),
                "it comes with the CUDA toolkit; LD_LIBRARY_PATH says where it is");
  void* const found = dlsym(library, name);
  if (!found) loqal::fail(loqal::cat(file, " has no function ", name));
  return reinterpret_cast<F*>(found);
}

// Calls the library's function of the same name.
#define FORWARD(name, ...)                                           \
  do {                                                               \
    static decltype(name)* const call = find<decltype(name)>(#name); \
    return call(__VA_ARGS__);                                        \
  } while (0)

}  // namespace

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  FORWARD(cublasLtGetStatusString, status);
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { FORWARD(cublasLtCreate, handle); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { FORWARD(cublasLtDestroy, handle); }
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  FORWARD(cublasLtMatmulDescCreate, d, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  FORWARD(cublasLtMatmulDescDestroy, d);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  FORWARD(cublasLtMatmulDescSetAttribute, d, attribute, value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  FORWARD(cublasLtMatrixLayoutCreate, l, type, rows, cols, ld);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  FORWARD(cublasLtMatrixLayoutDestroy, l);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  FORWARD(cublasLtMatmulPreferenceCreate, p);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  FORWARD(cublasLtMatmulPreferenceDestroy, p);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  FORWARD(cublasLtMatmulPreferenceSetAttribute, p, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t result,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  FORWARD(cublasLtMatmulAlgoGetHeuristic, handle, d, a, b, c, result, preference, requested,
          results, count);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void* alpha,
                              const void* A, cublasLtMatrixLayout_t a, const void* B,
                              cublasLtMatrixLayout_t b, const void* beta, const void* C,
                              cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t result,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  FORWARD(cublasLtMatmul, handle, d, alpha, A, a, B, b, beta, C, c, D, result, algorithm, workspace,
          workspace_bytes, stream);
}

}  // extern "C"
