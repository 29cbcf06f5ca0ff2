// all_reduce, all_gather, send and receive: how GPUs of several ranks exchange tensors with NCCL, without the
// host.
//
// NCCL also offers sums, but their order depends on the machine and may depend on the size. Here each rank
// adds up the parts itself, in the order of the ranks, so the same ranks get the same bits however they are
// run. Parts of n numbers reach a rank in one of two ways:
//
//   few numbers   each rank gets all parts: (ranks - 1) · 4n bytes, in one call. A token of a text is some
//                 thousands of numbers, whose time is that of starting the call.
//   many          each rank gets all parts of its own slice, then the sums of the other slices, in two calls:
//                 2 (ranks - 1) / ranks · 4n bytes, as in a ring. For two ranks that is no less than above.
//
// Sending a tensor to one rank takes one call on either side. It is sent without a copy, in the stream of the
// kernels. Later kernels may overwrite it, so they wait until the other GPU has received it. In a pipeline of
// equal stages, that GPU is ready by then. A faster sender would need a copy and its own stream.
//
// A graph that run() records contains none of these calls. NCCL allows a call in a graph only if it is in a
// graph on all ranks, but each rank decides about its graphs alone, by its own addresses.
#include <algorithm>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_functions.cuh"

namespace staircase {
namespace cuda {

constexpr int kCollectiveThreads = 256;

/// From this many numbers on, all_reduce uses the second way: they are 256 KiB, which take a GPU's link about
/// as long as starting a call. This follows from data sheets and was not measured.
constexpr std::int64_t kSlicedFrom = 1 << 16;

/// x = the sum of all parts, in the order of the ranks. They lie side by side in `parts`, except the part of
/// `rank`, which is x itself.
__global__ __launch_bounds__(kCollectiveThreads) void add_parts(const float* parts, int rank, int ranks,
                                                                std::int64_t stride, std::int64_t count,
                                                                float* x) {
  begin_after_previous();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kCollectiveThreads + threadIdx.x;
  if (i >= count) return;
  const float own = x[i];
  float sum = rank == 0 ? own : parts[i];
  for (int other = 1; other < ranks; ++other) sum += other == rank ? own : parts[other * stride + i];
  x[i] = sum;
}

/// One block for each row of `all` and each kCollectiveThreads of its columns. parts [ranks, rows, width].
__global__ __launch_bounds__(kCollectiveThreads) void place_side_by_side(const float* parts, int rows,
                                                                         int width, int count, int columns,
                                                                         float* all) {
  begin_after_previous();
  const int row = static_cast<int>(blockIdx.x);
  const int column = static_cast<int>(blockIdx.y) * kCollectiveThreads + static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  const std::int64_t part = static_cast<std::int64_t>(column / count) * rows + row;
  all[static_cast<std::int64_t>(row) * columns + column] = parts[part * width + column % count];
}

void add_up(const float* parts, const NcclLink& link, std::int64_t stride, std::int64_t count, float* x,
            Stream stream) {
  launch("all_reduce was started", stream, blocks(divide_up<std::int64_t>(count, kCollectiveThreads)),
         kCollectiveThreads, 0, add_parts, parts, link.rank(), link.size(), stride, count, x);
}

}  // namespace cuda

bool CudaDevice::can_join() const {
  return cuda::NcclLink::is_built();
}

void CudaDevice::join(const DeviceRank& own) {
  if (!link_) link_ = std::make_unique<cuda::NcclLink>(own);
}

void CudaDevice::abandon() {
  if (!link_) return;
  *abandoned_ = true;
  link_->abandon();
  cublas_->abandon();
}

std::size_t CudaDevice::all_reduce(Tensor& x) {
  if (!link_) return Device::all_reduce(x);
  check_not_running();
  const std::int64_t numbers = x.size(), ranks = link_->size(), own = link_->rank();
  float* const first = x.data<float>();
  if (ranks == 2 || numbers < cuda::kSlicedFrom) {
    float* const parts = scratch(numbers * ranks);
    link_->all_gather(first, numbers, parts, stream());
    cuda::add_up(parts, *link_, numbers, numbers, first, stream());
    return static_cast<std::size_t>((ranks - 1) * numbers) * sizeof(float);
  }

  const std::int64_t slice = cuda::divide_up(numbers, ranks);
  const auto start = [&](std::int64_t rank) { return first + std::min(rank * slice, numbers); };
  const auto count = [&](std::int64_t rank) { return start(rank + 1) - start(rank); };
  float* const parts = scratch(slice * ranks);
  link_->exchange(
      [&](int other) {
        return cuda::NcclLink::Parcel{start(other), count(other), parts + other * slice, count(own)};
      },
      stream());
  cuda::add_up(parts, *link_, slice, count(own), start(own), stream());
  link_->exchange(
      [&](int other) {
        return cuda::NcclLink::Parcel{start(own), count(own), start(other), count(other)};
      },
      stream());
  return static_cast<std::size_t>((ranks - 1) * count(own) + numbers - count(own)) * sizeof(float);
}

std::size_t CudaDevice::all_gather(const Tensor& own, std::int64_t count, Tensor& all) {
  if (!link_) return Device::all_gather(own, count, all);
  check_not_running();
  const std::int64_t numbers = own.size(), ranks = link_->size();
  float* const parts = scratch(numbers * ranks);
  link_->all_gather(own.data<float>(), numbers, parts, stream());
  const dim3 grid(cuda::blocks(all.dim(0)),
                  cuda::blocks(cuda::divide_up<std::int64_t>(all.dim(1), cuda::kCollectiveThreads)));
  cuda::launch("all_gather was started", stream(), grid, cuda::kCollectiveThreads, 0,
               cuda::place_side_by_side, parts, static_cast<int>(own.dim(0)), static_cast<int>(own.dim(1)),
               static_cast<int>(count), static_cast<int>(all.dim(1)), all.data<float>());
  return static_cast<std::size_t>((ranks - 1) * numbers) * sizeof(float);
}

void CudaDevice::send(const Tensor& x, int to) {
  if (!link_) return Device::send(x, to);
  check_not_running();
  link_->send(x.data<float>(), x.size(), to, stream());
}

std::size_t CudaDevice::receive(Tensor& x, int from) {
  if (!link_) return Device::receive(x, from);
  check_not_running();
  link_->receive(x.data<float>(), x.size(), from, stream());
  return x.bytes();
}

}  // namespace staircase
