// An NVIDIA GPU as a device. Each operation is in the file named after it, except query_key_value, which is
// in linear.cu, and the operations between GPUs, which are in collectives.cu. All operations run in order on
// one stream.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "kernels/cuda/cublas_lt.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/nccl_link.h"
#include "kernels/cuda/operation_list.h"
#include "kernels/device.h"

namespace staircase {

/// Weights are stored as [out_features, in_features], row-major (weights.cuh). The weights of one output are
/// adjacent, so a warp reads them in order. In the embedding, a token is one row.
class CudaDevice final : public Device {
 public:
  /// Throws std::runtime_error if this program cannot use a GPU.
  explicit CudaDevice(bool may_overlap);

  std::string description() const override { return description_; }

  Tensor allocate(DType dtype, const Shape& shape) override;
  void copy_from_host(std::span<const std::int32_t> source, Tensor& destination) override;
  void copy_to_host(const Tensor& source, std::span<std::byte> destination) override;
  std::span<const float> to_host(const Tensor& source, Tensor& memory) override;
  std::function<std::span<const std::int32_t>()> start_to_host(const Tensor& source, Tensor& memory) override;
  std::optional<std::uint64_t> given() const override { return given_; }
  Tensor load(const HostArray& array) override;
  using Device::load_weight;
  Weight load_weight(std::span<const HostArray> parts, WeightOrder order, DType dtype) override;

  void run(const std::function<void()>& work, std::span<const std::uint64_t> key) override;

  std::string card() const override { return card_; }
  void use(const cuda::Tuning& tuning) override;

  DType operand_dtype(std::int64_t rows, DType weights) const override;
  void embedding(const Batch& batch, const Weight& token_table, const Tensor& position_table,
                 Tensor& out) override;
  void normalize(const Tensor& x, const Norm& norm, Tensor& out) override;
  void add_normalized(const Tensor& x, const Norm& norm, Tensor& out) override;
  void linear(const Tensor& x, const Norm& norm, const Weight& weight, const Tensor& bias, Epilogue epilogue,
              Tensor& out) override;
  void add_low_rank(const Tensor& x, const Tensor& adapters, const LowRank& change, Tensor& out) override;
  void activate(const Tensor& x, Epilogue epilogue, Tensor& out) override;
  void query_key_value(const Batch& batch, const Tensor& x, const Norm& norm, const Weight& weight,
                       const Tensor& bias, Tensor& queries, KeysValues& keys_values) override;
  void split_heads(const Batch& batch, const Tensor& projected, const HeadRule& rule, Tensor& queries,
                   KeysValues& keys_values) override;
  void attention(const Batch& batch, const Tensor& queries, const KeysValues& keys_values,
                 Tensor& out) override;
  void announce(const Weight& first, const Weight& second) override;
  void gather_rows(const Tensor& x, const Tensor& indices, Tensor& out) override;
  void choose_experts(const Tensor& scores, RouterSoftmax softmax, Tensor& chosen, Tensor& shares) override;
  void combine_rows(const Tensor& x, const Tensor& places, const Tensor& shares, Epilogue epilogue,
                    Tensor& out) override;
  using Device::argmax;
  void argmax(const Tensor& x, Tensor& out, Batch* batch) override;
  void k_largest(const Tensor& x, std::int64_t k, Tensor& out) override;

  bool can_join() const override;
  void join(const DeviceRank& own) override;
  bool is_linked() const override { return link_ != nullptr; }
  std::size_t all_reduce(Tensor& x) override;
  std::size_t all_gather(const Tensor& own, std::int64_t count, Tensor& all) override;
  void send(const Tensor& x, int to) override;
  std::size_t receive(Tensor& x, int from) override;
  void abandon() override;

 private:
  void do_copy_positions(const Tensor& from, std::int64_t from_first, std::int64_t count, Tensor& to,
                         std::int64_t to_first) override;

  struct DestroyStream {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };
  struct DestroyGraph {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  using Graph = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

  cuda::Stream stream() const { return {stream_.get(), overlaps_}; }

  enum class Operation {
    kEmbedding,
    kNormalize,
    kAddNormalized,
    kLinear,
    kAddLowRank,
    kActivate,
    kQueryKeyValue,
    kSplitHeads,
    kAttention,
    kCopyPositions,
    kGatherRows,
    kChooseExperts,
    kCombineRows,
    kArgmax,
    kKLargest
  };

  /// Every operation calls this first. If the result is true, run() is only listing operations, and the
  /// operation must return at once.
  template <typename... Arguments>
  bool listed(Operation operation, const Arguments&... arguments) {
    if (!list_) {
      ++given_;
      if (link_ && ++started_ > kMostStarted) wait();
      return false;
    }
    list_->add(operation);
    (list_->add(arguments), ...);
    return true;
  }

  /// Every copy from or to the host calls this.
  void check_not_running() const {
    if (running_) throw std::logic_error("a run contains a copy from or to the host");
  }

  /// Waits for all operations, and throws their errors if no earlier call has done so.
  void wait();

  /// Call before memory is allocated or released, because CUDA then waits for all kernels. Kernels of a
  /// linked device may wait for a lost rank, and only wait() notices that.
  void wait_if_linked() {
    if (link_) wait();
  }

  float* grown(Tensor& memory, std::int64_t floats) {
    if (memory.size() < floats) wait_if_linked();
    return Device::grown(memory, floats);
  }

  /// `attention` for keys and values stored as the C++ type Stored.
  template <typename Stored>
  void attend(const Batch& batch, const Tensor& queries, const KeysValues& keys_values, Tensor& out);

  /// Returns norm(x) [rows, in] in type `dtype`, in device memory, or x itself if nothing has to be done.
  Tensor as_operand(const Tensor& x, const Norm& norm, DType dtype);

  /// Computes norm(x) W for a few rows and passes the results to `store`. Returns false, and does nothing,
  /// for more rows.
  template <typename Store>
  bool few_rows(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store);

  /// Computes norm(x) W for any number of rows and passes the results to `store`.
  template <typename Store>
  void multiply(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store);

  /// The type of x that cuBLAS needs with weights of this type.
  DType cublas_dtype(DType weights) const;

  /// CublasLt::multiply for x of cublas_dtype and weights of any type.
  bool many_rows(const Tensor& x, const Weight& weight, const Tensor& bias, float keep, float* out);

  float* scratch(std::int64_t floats) { return grown(scratch_, floats); }
  /// Returns `count` counters that are 0. Every operation must leave them at 0.
  unsigned* zeros(std::int64_t count);

  /// Allocates host memory that the GPU reads and writes directly.
  Tensor page_locked(DType dtype, const Shape& shape) const;

  /// Returns `memory`, page-locked and with room for all of `source`; allocates it if necessary.
  std::span<float> host_memory(const Tensor& source, Tensor& memory);

  /// Returns a function that frees memory, except after abandon(): freeing would then wait for kernels that
  /// wait for another rank.
  template <typename Free>
  auto deleter(Free free) const {
    return [abandoned = abandoned_, free](void* memory) {
      if (!*abandoned) free(memory);
    };
  }

  std::string card_, description_;
  std::shared_ptr<bool> abandoned_ = std::make_shared<bool>(false);  // tensors may outlive the device
  int multiprocessors_ = 0;
  std::int64_t l2_bytes_ = 0;
  std::unique_ptr<const cuda::Tuning> tuning_;  // set by the constructor
  bool has_bfloat16_ = true;
  bool has_tensor_cores_ = false;  // tensor cores with the instructions of tensor_cores.cuh
  bool overlaps_ = false;
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream> stream_;
  std::optional<cuda::CublasLt> cublas_;  // set by the constructor
  std::unique_ptr<cuda::NcclLink> link_;  // the link to the GPUs of other ranks
  /// A GPU queues about a thousand launches. A further launch waits for earlier ones, so it could wait for a
  /// lost rank forever. A linked device therefore calls wait() after this many operations, each of a few
  /// launches.
  static constexpr int kMostStarted = 64;
  int started_ = 0;  // operations of a linked device since the last wait()
  std::uint64_t given_ = 0;
  Tensor staging_;          // page-locked host memory; the source of copies to the GPU
  std::size_t staged_ = 0;  // bytes of staging_ that the GPU may not have read yet
  Tensor scratch_;
  Tensor zeros_;
  Tensor projected_;  // queries, keys and values before their heads are quantized
  Tensor operand_;    // the rows that a product multiplies, normalized or in the type of the weights
  std::array<Tensor, 2> announced_;  // weights of the products that follow the next attention
  Tensor widened_;                   // 8-bit or 4-bit weights, widened for cuBLAS
  bool running_ = false;
  std::optional<cuda::OperationList> list_;  // the operations listed so far, while run() lists them
  // The work that run() has run; from the second time on, with its graph.
  std::map<cuda::OperationList, Graph> recordings_;
};

}  // namespace staircase
