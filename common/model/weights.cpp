#include "common/model/weights.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "common/base/error.h"
#include "common/base/message.h"
#include "kernels/host_arrays.h"

namespace staircase {
namespace {

/// The largest number that weights of this type may have. Types of few bits use scales of 16 bits, or are
/// widened to 16 bits for a product.
float largest_of(DType dtype) {
  if (dtype == DType::kFloat32) return std::numeric_limits<float>::max();
  return dtype == DType::kFloat16 ? 65504.0f : 0x1.FEp127f;
}

/// Whether no number is further from zero than the number with the bits `largest`; infinity and NaN count as
/// further. `Bits` is the unsigned type of a number's bits.
template <typename Bits>
bool all_within(const std::byte* bytes, std::size_t count, Bits largest) {
  Bits broken = 0;  // in the numbers' own type and without a branch, so the loop is vectorized
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    constexpr Bits kSize = std::numeric_limits<Bits>::max() / 2;  // all but the sign
    broken |= static_cast<Bits>((bits & kSize) > largest);
  }
  return broken == 0;
}

bool all_within(const HostArray& array, float largest) {
  const auto* const bytes = static_cast<const std::byte*>(array.data);
  const auto count = static_cast<std::size_t>(array.rows * array.columns);
  const auto bits = std::bit_cast<std::uint32_t>(largest);
  if (array.dtype == DType::kFloat32) return all_within<std::uint32_t>(bytes, count, bits);
  // A bfloat16 is the upper half of a float32. Every type holds the largest float16.
  return all_within<std::uint16_t>(
      bytes, count, static_cast<std::uint16_t>(array.dtype == DType::kFloat16 ? 0x7bff : bits >> 16));
}

/// Keeps rows in stored order, one after another.
std::vector<HostArray> in_order(std::span<const HostArray> stored) {
  return {stored.begin(), stored.end()};
}

}  // namespace

std::vector<std::int64_t> neighbouring_columns(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> columns(static_cast<std::size_t>(count));
  std::iota(columns.begin(), columns.end(), first);
  return columns;
}

WeightReader::WeightReader(Checkpoint checkpoint, Device& device, DType dtype, std::string prefix,
                           Share share)
    : checkpoint_(std::move(checkpoint)),
      device_(device),
      dtype_(dtype),
      prefix_(std::move(prefix)),
      share_(std::move(share)) {}

Weight WeightReader::matrix(const std::string& name, WeightOrder order, const Slice& in,
                            const std::vector<Slice>& out) {
  const bool inputs_first = order == WeightOrder::kInputFirst;
  const std::int64_t outputs = out[0].whole;
  const CheckpointTensor& tensor =
      find(name, inputs_first ? std::vector{in.whole, outputs} : std::vector{outputs, in.whole});
  const CheckpointArray stored = inputs_first ? checkpoint_.read(tensor, dtype_, in, out)
                                              : checkpoint_.read(tensor, dtype_, out[0], std::span(&in, 1));
  return load(tensor, stored, order);
}

Weight WeightReader::matrix(const Part& part, const Slice& in) {
  const CheckpointTensor& tensor = *find(part, in.whole).tensor;
  return load(tensor, checkpoint_.read(tensor, dtype_, part.outputs, std::span(&in, 1)),
              WeightOrder::kOutputFirst);
}

Weight WeightReader::load(const CheckpointTensor& tensor, const CheckpointArray& stored, WeightOrder order) {
  const Weight weight = device_.load_weight(stored.array, order, dtype_);
  check_numbers(tensor, stored.array, dtype_);  // the device's threads have just loaded it from the file
  checkpoint_.release(tensor);
  bytes_ += weight.packed.bytes();
  return weight;
}

Weight WeightReader::matrix(std::span<const Part> parts, std::int64_t in) {
  std::vector<Rows> wanted;
  for (const Part& part : parts) wanted.push_back(find(part, in));
  return load(wanted, dtype_, in_order);
}

Weight WeightReader::router(const std::string& name, std::int64_t outputs, std::int64_t in) {
  return load({find({name, outputs}, in)}, DType::kFloat32, in_order);
}

Weight WeightReader::gated_matrix(const Part& gate, const Part& up, std::int64_t in) {
  const std::vector<float> zeros(static_cast<std::size_t>(in));
  return load({find(gate, in), find(up, in)}, dtype_,
              [&](std::span<const HostArray> stored) { return in_gate_order(stored[0], stored[1], zeros); });
}

Weight WeightReader::reordered_matrix(const Part& part, std::span<const std::int64_t> starts,
                                      std::int64_t count, std::int64_t in) {
  return load({find(part, in)}, dtype_, [&](std::span<const HostArray> stored) {
    std::vector<HostArray> parts;
    for (const std::int64_t start : starts) parts.push_back(rows_of(stored[0], start, count));
    return parts;
  });
}

Embeddings WeightReader::embeddings(const std::string& tokens, const std::string& output,
                                    const ModelConfig& config) {
  const std::int64_t missing = share_.rows() - share_.vocabulary.count;
  const std::vector<float> zeros(static_cast<std::size_t>(missing * config.n_embd));
  const auto embedding = [&](const std::string& name) {
    return load({find({name, share_.vocabulary}, config.n_embd)}, embedding_dtype(dtype_),
                [&](std::span<const HostArray> stored) {
                  std::vector<HostArray> parts = in_order(stored);
                  if (missing > 0) parts.push_back({zeros.data(), DType::kFloat32, missing, config.n_embd});
                  return parts;
                });
  };
  // A file may store a tied matrix under either name.
  const bool output_alone = config.tie_word_embeddings && look_up(tokens) == nullptr && look_up(output);
  const std::string& input = output_alone ? output : tokens;
  // A file may also store the output layer of a tied model. If it differs from the embedding, the model was
  // trained with it.
  const CheckpointTensor* const stored = look_up(output);
  const bool tied =
      config.tie_word_embeddings &&
      (stored == nullptr ||
       same(*stored, *find({input, config.vocab_size}, config.n_embd).tensor, share_.vocabulary));
  Embeddings embeddings;
  if (share_.has_first_block() || (tied && share_.has_last_block())) embeddings.tokens = embedding(input);
  if (!tied && share_.has_last_block()) embeddings.output = embedding(output);
  return embeddings;
}

Tensor WeightReader::vector(const std::string& name, std::int64_t size) {
  return table(find(name, {size}));
}

Tensor WeightReader::table(const CheckpointTensor& tensor) {
  const CheckpointArray stored = checkpoint_.read(tensor, DType::kFloat32);
  check_numbers(tensor, stored.array, DType::kFloat32);
  const Tensor loaded = device_.load(stored.array);
  bytes_ += loaded.bytes();
  return loaded;
}

Tensor WeightReader::vector(std::span<const Part> parts) {
  std::vector<float> all;
  for (const Part& part : parts) {
    const Slice& outputs = part.outputs;
    const std::vector<float> stored = values(part.name, outputs.whole);
    all.insert(all.end(), stored.begin() + outputs.first, stored.begin() + outputs.first + outputs.count);
  }
  return vector(all);
}

Tensor WeightReader::on_first_rank(const std::string& name, const std::vector<std::int64_t>& shape) {
  const CheckpointTensor& tensor = find(name, shape);
  return share_.first ? table(tensor) : Tensor();
}

Tensor WeightReader::vector(std::span<const float> values) {
  const Tensor tensor =
      device_.load({values.data(), DType::kFloat32, 1, static_cast<std::int64_t>(values.size())});
  bytes_ += tensor.bytes();
  return tensor;
}

std::vector<float> WeightReader::values(const std::string& name, std::int64_t size) {
  const CheckpointTensor& tensor = find(name, {size});
  const CheckpointArray stored = checkpoint_.read(tensor, DType::kFloat32);
  check_numbers(tensor, stored.array, DType::kFloat32);
  return to_floats(stored.array);
}

void WeightReader::warn_of_unused(std::span<const std::string_view> buffers) const {
  std::vector<std::string> unused;
  for (const auto& entry : checkpoint_.tensors()) {
    const std::string& name = entry.first;
    const bool buffer =
        std::ranges::any_of(buffers, [&](std::string_view ending) { return name.ends_with(ending); });
    if (!buffer && !asked_.contains(name)) unused.push_back(name);
  }
  if (unused.empty()) return;
  warn("{}: a model of this shape has no use for {}{}; ignored", checkpoint_.file().string(), unused[0],
       unused.size() == 1 ? "" : fmt::format(" and {} more tensors", unused.size() - 1));
}

const CheckpointTensor* WeightReader::look_up(const std::string& name) {
  for (const std::string& written : {name, prefix_ + name}) {
    asked_.insert(written);
    if (const CheckpointTensor* tensor = checkpoint_.find(written)) return tensor;
  }
  return nullptr;
}

const CheckpointTensor& WeightReader::find(const std::string& name, const std::vector<std::int64_t>& shape) {
  const CheckpointTensor* const tensor = look_up(name);
  if (tensor == nullptr) {
    throw Error("{} has no tensor {}, which a model of this shape needs", checkpoint_.file().string(), name);
  }
  if (tensor->shape != shape) {
    throw Error("{}: tensor {} has shape {}, but the configuration requires {}", tensor->file.string(), name,
                to_string(tensor->shape), to_string(shape));
  }
  if (!checkpoint_.is_readable(*tensor)) {
    throw Error("{}: tensor {} is stored as {}; {} can be read", tensor->file.string(), name, tensor->dtype,
                checkpoint_.readable_types());
  }
  return *tensor;
}

WeightReader::Rows WeightReader::find(const Part& part, std::int64_t in) {
  const std::int64_t matrices = part.matrices, outputs = part.outputs.whole;
  const CheckpointTensor& tensor =
      matrices == 0 ? find(part.name, {outputs, in}) : find(part.name, {matrices, outputs / matrices, in});
  return {&tensor, part.outputs};
}

std::string WeightReader::name_of(const CheckpointTensor& tensor) const {
  const auto& tensors = checkpoint_.tensors();
  return std::ranges::find_if(tensors, [&](const auto& entry) { return &entry.second == &tensor; })->first;
}

void WeightReader::check_numbers(const CheckpointTensor& tensor, const HostArray& array, DType dtype) const {
  const float largest = largest_of(dtype);
  if (all_within(array, largest)) return;
  if (!all_within(array, largest_of(DType::kFloat32))) {
    throw Error("{}: tensor {} has a non-finite value", tensor.file.string(), name_of(tensor));
  }
  throw Error("{}: tensor {} has a value beyond ±{}, the limit for weights in {}; float32 holds it",
              tensor.file.string(), name_of(tensor), largest, to_string(dtype));
}

template <typename Arrange>
Weight WeightReader::load(const std::vector<Rows>& wanted, DType dtype, const Arrange& arrange) {
  std::vector<CheckpointArray> read;
  std::vector<HostArray> arrays;
  for (const auto& [tensor, slice] : wanted) {
    const Slice columns = tensor->shape.back();
    read.push_back(checkpoint_.read(*tensor, dtype, slice, std::span(&columns, 1)));
    arrays.push_back(read.back().array);
  }
  const Weight weight = device_.load_weight(arrange(arrays), WeightOrder::kOutputFirst, dtype);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    check_numbers(*wanted[i].tensor, arrays[i], dtype_);
    checkpoint_.release(*wanted[i].tensor);
  }
  bytes_ += weight.packed.bytes();
  return weight;
}

bool WeightReader::same(const CheckpointTensor& one, const CheckpointTensor& other, const Slice& rows) const {
  const auto stored = [&](const CheckpointTensor& tensor) {
    const std::size_t row = tensor.bytes.size() / static_cast<std::size_t>(rows.whole);
    const auto part = tensor.bytes.subspan(static_cast<std::size_t>(rows.first) * row,
                                           static_cast<std::size_t>(rows.count) * row);
    checkpoint_.prefetch(part);
    return part;
  };
  return one.dtype == other.dtype && one.shape == other.shape &&
         std::ranges::equal(stored(one), stored(other));
}

}  // namespace staircase
