// The device itself - what it is, its memory and stream - and whole-tensor operations.
#include <chrono>
#include <vector>

#include "core/philox.h"
#include "ops/cuda/cublaslt.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.cuh"

namespace loqal {

namespace cuda {
namespace {

template <class X, int W>
__global__ void fill_kernel(View<X> y, float value, int64_t rows, int64_t packs) {
  Floats<W> v;
  for (int i = 0; i < W; i++) v[i] = value;
  for_each_pack(rows, packs, [&](int64_t r, int64_t pack) { store(y.row(r) + pack * W, v); });
}

template <class Y, class X, int W>
__global__ void copy_kernel(View<Y> y, View<const X> x, int64_t rows, int64_t packs) {
  for_each_pack(rows, packs, [&](int64_t r, int64_t pack) {
    store(y.row(r) + pack * W, load<W>(x.row(r) + pack * W));
  });
}

/// sums[block]: the products of the block's elements; each thread takes every (grid x block)-th.
__global__ void dot_kernel(double* sums, const float* x, const float* y, int64_t n) {
  double sum = 0;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += int64_t(gridDim.x) * blockDim.x)
    sum += double(x[i]) * double(y[i]);
  sum = block_reduce(sum, Sum(), 0.0);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void axpby_kernel(float* y, float a, const float* x, float b, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < n) y[i] = b == 0 ? a * x[i] : a * x[i] + b * y[i];
}

__global__ void sum_kernel(double* total, const double* sums, int n) {
  double sum = 0;
  for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) sum += sums[i];
  sum = block_reduce(sum, Sum(), 0.0);
  if (threadIdx.x == 0) *total = sum;
}

__global__ void add_partials_kernel(float* to, const float* partials, int64_t count, int64_t width,
                                    int64_t columns, bool accumulate) {
  const int64_t j = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= columns) return;
  float sum = accumulate ? to[j] : 0.0f;
  for (int64_t i = 0; i < count; i++) sum += partials[i * width + j];
  to[j] = sum;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

std::unique_ptr<Ops> make_cuda_ops(int device, bool dry) {
  return std::make_unique<CudaOps>(device, dry);
}

CudaStatus cuda_status(int device) {
  int count = 0, driver = 0, runtime = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  const auto version = [](int v) { return cat(v / 1000, ".", v % 1000 / 10); };
  if (driver == 0) return {false, "there is no NVIDIA driver"};
  if (error == cudaErrorInsufficientDriver)
    return {false, cat("the driver is for CUDA ", version(driver), ", this program needs ",
                       version(runtime))};
  if (error != cudaSuccess) return {false, cudaGetErrorString(error)};
  if (device >= count)
    return {false, count == 0 ? "the driver sees no GPU" : cat("there are only ", count, " GPUs")};
  cudaDeviceProp properties;
  CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  if (properties.major < 8)
    return {false, cat(properties.name, " has compute capability ", properties.major, ".",
                       properties.minor, ", at least 8.0 is needed")};
  cudaFuncAttributes attributes;
  if (cudaSetDevice(device) != cudaSuccess ||
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(fill_kernel<float, 1>)) !=
          cudaSuccess)
    return {
        false,
        cat(properties.name, " has compute capability ", properties.major, ".", properties.minor,
            ", for which this program holds no code that its driver "
            "takes (make CUDA_ARCH=",
            properties.major, properties.minor, "): ", cudaGetErrorString(cudaGetLastError()))};
  return {true,
          cat(properties.name, ", compute capability ", properties.major, ".", properties.minor)};
}

int64_t cuda_free_bytes(int device) {
  size_t available = 0, total = 0;
  CUDA_CHECK(cudaSetDevice(device));
  CUDA_CHECK(cudaMemGetInfo(&available, &total));
  return int64_t(available);
}

CudaOps::CudaOps(int device, bool dry) : Ops(dry), device_(device) {
  if (!dry) {
    CUDA_CHECK(cudaSetDevice(device));
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUBLAS_CHECK(cublasLtCreate(&handle_));
  }
  workspace_ = alloc(kGemmBytes + (1 << 20), "workspace");
}

CudaOps::~CudaOps() {
  if (dry()) return;
  cudaSetDevice(device_);  // errors have nowhere to go here
  cudaStreamSynchronize(stream_);
  workspace_ = Buffer();
  cublasLtDestroy(handle_);
  cudaStreamDestroy(stream_);
}

std::string CudaOps::description() const {
  cudaDeviceProp properties;
  if (dry() || cudaGetDeviceProperties(&properties, device_) != cudaSuccess) return "GPU";
  return cat(properties.name, ", ", properties.totalGlobalMem >> 30, " GiB, ",
             properties.multiProcessorCount, " multiprocessors, CUDA ", CUDART_VERSION / 1000, ".",
             CUDART_VERSION % 1000 / 10);
}

cudaStream_t CudaOps::stream() {
  CUDA_CHECK(cudaSetDevice(device_));
  return stream_;
}

void* CudaOps::workspace(int64_t bytes) {
  if (bytes > workspace_.bytes()) {
    workspace_ = Buffer();  // cudaFree waits for the kernels that use it
    workspace_ = alloc(bytes, "workspace");
  }
  return workspace_.data();
}

// 64 rows of random numbers, again and again: a GPU multiplies zeros faster than it can data.
static void fill_with_noise(CudaOps& ops, const Tensor& x) {
  const PhiloxStream stream(1, Purpose::test);
  const Tensor first = x.row_slice(0, std::min<int64_t>(64, x.rows));
  std::vector<float> host(size_t(first.numel()));
  for (size_t i = 0; i < host.size(); i++) host[i] = stream.uniform(i) - 0.5f;
  const Buffer memory = ops.alloc(first.numel() * 4, "workspace");
  const Tensor noise(memory.as<float>(), first.rows, first.cols);
  ops.upload(noise, host.data());
  ops.copy(first, noise);
  for (int64_t done = first.rows; done < x.rows; done *= 2) {
    const int64_t rows = std::min(done, x.rows - done);
    ops.copy(x.row_slice(done, rows), x.row_slice(0, rows));
  }
}

// Doubles the size until a product takes a millisecond: large enough for any GPU's peak.
double CudaOps::peak_flops(DType type) {
  double& peak = peak_[type == DType::BF16];
  const int64_t size = int64_t(size_of(type));
  for (int64_t n = 256, milliseconds = 0; peak_[type == DType::BF16] == 0 && n <= 8192; n *= 2) {
    Buffer a = alloc(n * n * size, "workspace"), b = alloc(n * n * size, "workspace"),
           c = alloc(n * n * size, "workspace");
    const Tensor ta(a.data(), type, n, n), tb(b.data(), type, n, n), tc(c.data(), type, n, n);
    for (const Tensor& x : {ta, tb}) fill_with_noise(*this, x);
    double best = 0;
    for (int round = 0; round < 4; round++) {
      CUDA_CHECK(cudaStreamSynchronize(stream()));
      const auto start = std::chrono::steady_clock::now();
      matmul(tc, ta, tb, {.transpose_b = true});
      CUDA_CHECK(cudaStreamSynchronize(stream()));
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      milliseconds = int64_t(1e3 * seconds.count());
      best = std::max(best, 2.0 * double(n) * double(n) * double(n) / seconds.count());
    }
    if (milliseconds >= 1 || n == 8192) peak = best;
  }
  return peak;
}

void CudaOps::do_wait() { CUDA_CHECK(cudaStreamSynchronize(stream())); }

void* CudaOps::do_alloc(int64_t bytes) {
  void* data = nullptr;
  cudaStream_t on = stream();
  const cudaError_t error = cudaMalloc(&data, size_t(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return nullptr;
  }
  CUDA_CHECK(error);
  CUDA_CHECK(cudaMemsetAsync(data, 0, size_t(bytes), on));
  return data;
}

void CudaOps::do_free(void* data, int64_t) {
  cudaSetDevice(device_);  // in a destructor: an earlier error is reported by the call that made it
  cudaFree(data);
}

void CudaOps::do_upload(const Tensor& dst, const void* host) {
  if (dst.numel() == 0) return;
  CUDA_CHECK(cudaMemcpyAsync(dst.data, host, size_t(dst.numel()) * size_of(dst.dtype),
                             cudaMemcpyHostToDevice, stream()));
  // Small pageable blocks are staged before the call returns; of large ones nobody promises it.
  if (dst.numel() * int64_t(size_of(dst.dtype)) > (int64_t(1) << 16)) do_wait();
}

void CudaOps::do_download(void* host, const Tensor& src) {
  if (src.numel() > 0)
    CUDA_CHECK(cudaMemcpyAsync(host, src.data, size_t(src.numel()) * size_of(src.dtype),
                               cudaMemcpyDeviceToHost, stream()));
  CUDA_CHECK(cudaStreamSynchronize(stream()));
}

void CudaOps::do_fill(const Tensor& y, float value) {
  dispatch(y, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({y}, [&](auto width) {
      constexpr int W = width;
      const PackGrid g(y.rows, y.cols / W);
      if (g.empty()) return;
      launch(fill_kernel<X, W>, g.grid, g.block, 0, stream(), view<X>(y), value, g.rows, g.packs);
    });
  });
}

void CudaOps::do_copy(const Tensor& y, const Tensor& x) {
  dispatch(y, [&](auto y_type) {
    dispatch(x, [&](auto x_type) {
      using Y = decltype(y_type);
      using X = decltype(x_type);
      with_width<std::max(kWide<X>, kWide<Y>)>({y, x}, [&](auto width) {
        constexpr int W = width;
        const PackGrid g(y.rows, y.cols / W);
        if (g.empty()) return;
        launch(copy_kernel<Y, X, W>, g.grid, g.block, 0, stream(), view<Y>(y), view<const X>(x),
               g.rows, g.packs);
      });
    });
  });
}

double CudaOps::do_sum_squares(const Tensor& x) { return do_dot(x, x); }

double CudaOps::do_dot(const Tensor& x, const Tensor& y) {
  constexpr int most = 1024;  // blocks
  const int blocks = int(std::min<int64_t>(most, ceil_div(x.numel(), 4 * kThreads)));
  if (blocks == 0) return 0;
  double* sums = static_cast<double*>(workspace((most + 1) * int64_t(sizeof(double))));
  double total = 0;
  launch(dot_kernel, blocks, kThreads, 0, stream(), sums, pointer<const float>(x),
         pointer<const float>(y), x.numel());
  launch(sum_kernel, 1, kThreads, 0, stream(), sums + most, sums, blocks);
  CUDA_CHECK(cudaMemcpyAsync(&total, sums + most, sizeof total, cudaMemcpyDeviceToHost, stream()));
  CUDA_CHECK(cudaStreamSynchronize(stream()));
  return total;
}

void CudaOps::do_axpby(const Tensor& y, float a, const Tensor& x, float b) {
  if (y.numel() == 0) return;
  launch(axpby_kernel, dim3(unsigned(ceil_div(y.numel(), kThreads))), kThreads, 0, stream(),
         pointer<float>(y), a, pointer<const float>(x), b, y.numel());
}

void CudaOps::add_partials(const Tensor& to, const float* partials, int64_t count, int64_t width,
                           int64_t first, bool accumulate) {
  launch(add_partials_kernel, dim3(unsigned(ceil_div(to.numel(), kThreads))), kThreads, 0, stream(),
         pointer<float>(to), partials + first, count, width, to.numel(), accumulate);
}

}  // namespace loqal
