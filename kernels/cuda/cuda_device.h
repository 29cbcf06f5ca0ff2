// An NVIDIA GPU as a device. Each operation is in the file of its name, query_key_value in linear.cu, and
// those between several GPUs in collectives.cu. All of them run in order on one stream.
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

/// Weights are kept as [out_features, in_features], row-major (weights.cuh). The weights of one output are
/// adjacent, so a warp reads them in order. A token of the embedding is one row.
class CudaDevice final : public Device {
 public:
  /// Throws std::runtime_error if this program can use no GPU.
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
  bool keeps(DType dtype, std::int64_t head_size) const override {
    return dtype == DType::kInt8 ? head_size % head_multiple(dtype) == 0 : Device::keeps(dtype, head_size);
  }
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

  /// The first line of every operation. It returns true while run() only lists operations; then return at
  /// once.
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

  /// Waits for all operations. Their errors are reported here at the latest.
  void wait();

  /// Call before memory is released or allocated, which waits for all kernels: those of a linked device may
  /// wait for a lost rank, which only wait() notices.
  void wait_if_linked() {
    if (link_) wait();
  }

  float* grown(Tensor& memory, std::int64_t floats) {
    if (memory.size() < floats) wait_if_linked();
    return Device::grown(memory, floats);
  }

  /// `attention`, with the C++ type that keys and values are stored in.
  template <typename Stored>
  void attend(const Batch& batch, const Tensor& queries, const KeysValues& keys_values, Tensor& out);

  /// norm(x) [rows, in] in that type, in device memory; x itself if there is nothing to do.
  Tensor as_operand(const Tensor& x, const Norm& norm, DType dtype);

  /// store(row, column, norm(x) W) for a few rows. Returns false, and does nothing, for more.
  template <typename Store>
  bool few_rows(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store);

  /// The same for any number of rows.
  template <typename Store>
  void multiply(const Tensor& x, const Norm& norm, const Weight& weight, const Store& store);

  /// The type in which cuBLAS takes x with weights of that type.
  DType cublas_dtype(DType weights) const;

  /// CublasLt::multiply for x of cublas_dtype and weights of any type.
  bool many_rows(const Tensor& x, const Weight& weight, const Tensor& bias, float keep, float* out);

  float* scratch(std::int64_t floats) { return grown(scratch_, floats); }
  /// Counters that start at 0. Every operation must leave them at 0.
  unsigned* zeros(std::int64_t count);

  /// Memory of the host that the GPU reads and writes directly.
  Tensor page_locked(DType dtype, const Shape& shape) const;

  /// `memory`, page-locked and with room for all of `source`.
  std::span<float> host_memory(const Tensor& source, Tensor& memory);

  /// Ends the life of memory, unless that would wait for kernels that wait for another rank.
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
  bool has_tensor_cores_ = false;  // with the instructions of tensor_cores.cuh
  bool overlaps_ = false;
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream> stream_;
  std::optional<cuda::CublasLt> cublas_;  // set by the constructor
  std::unique_ptr<cuda::NcclLink> link_;  // to the GPUs of other ranks
  /// A GPU takes about a thousand launches. Another one waits until the first are done, and would wait for a
  /// lost rank for ever. So a linked device itself waits after this many operations of some launches each.
  static constexpr int kMostStarted = 64;
  int started_ = 0;  // operations of a linked device since it waited
  std::uint64_t given_ = 0;
  Tensor staging_;          // page-locked memory of the host, from which copies to the GPU are made
  std::size_t staged_ = 0;  // bytes of it that the GPU may not have read yet
  Tensor scratch_;
  Tensor zeros_;
  Tensor projected_;  // queries, keys and values before their heads are rounded
  Tensor operand_;    // the rows that a product multiplies, normalized or in the type of the weights
  std::array<Tensor, 2> announced_;  // weights whose products follow the next attention
  Tensor widened_;                   // weights that were 8 or 4 bits, for cuBLAS
  bool running_ = false;
  std::optional<cuda::OperationList> list_;  // the operations of the work, while run() lists them
  std::map<cuda::OperationList, Graph>
      recordings_;  // of work that run() has done; a graph from the second time on
};

}  // namespace staircase
