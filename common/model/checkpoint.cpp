#include "common/model/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <set>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/model/gguf_types.h"
#include "common/model/safetensors.h"
#include "common/model/share.h"
#include "kernels/half.h"
#include "kernels/platform.h"

namespace staircase {

using nlohmann::json;

namespace {

/// The type that a safetensors file calls `dtype`, or nullptr if it cannot be read. GGUF has the same three
/// types.
const GgufType* safetensors_type(std::string_view dtype) {
  const bool readable = dtype == "F32" || dtype == "F16" || dtype == "BF16";
  return readable ? find_gguf_type(dtype) : nullptr;
}

CheckpointTensor from_safetensors(const StoredTensor& tensor, const std::filesystem::path& file) {
  return {tensor, file, safetensors_type(tensor.dtype)};
}

/// Maps each tensor's name to its file: the index's weight_map.
std::map<std::string, std::string> read_index(const std::filesystem::path& file) {
  const json index = parse_json_object(read_file(file), file.string());
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object()) {
    throw Error("{} has no weight_map, the object that names the file of each tensor", file.string());
  }
  if (weight_map->empty()) throw Error("{} maps no tensor: its weight_map is empty", file.string());
  std::map<std::string, std::string> shards;
  for (const auto& [name, shard] : weight_map->items()) {
    if (!shard.is_string()) {
      throw Error("{}: weight_map has {} for {}, which is not a file name", file.string(), shown(shard),
                  quote(name));
    }
    const std::string shard_name = shard.get<std::string>();
    // The index may be a stranger's, so it may name only files in its own folder.
    if (shard_name.find_first_of("/\\:") != shard_name.npos || !shard_name.ends_with(".safetensors")) {
      throw Error("{}: weight_map has {} for {}, which is not a .safetensors file of the same folder",
                  file.string(), quote(shard_name), quote(name));
    }
    shards.emplace(name, shard_name);
  }
  return shards;
}

/// Calls work(begin, end) for shares of 0 .. count - 1, on several processors if there are enough `numbers`
/// to pay for threads.
void in_shares(std::int64_t count, std::int64_t numbers,
               const std::function<void(std::int64_t, std::int64_t)>& work) {
  constexpr std::int64_t kFew = 1 << 16;  // starting a thread costs as much as some ten thousand numbers
  const std::int64_t shares =
      std::clamp<std::int64_t>(numbers / kFew, 1, std::min<std::int64_t>(count, platform::processors()));
  std::vector<std::future<void>> others;
  for (std::int64_t share = 1; share < shares; ++share) {
    others.push_back(std::async(work, count * share / shares, count * (share + 1) / shares));
  }
  work(0, count / shares);
  for (std::future<void>& other : others) other.get();
}

void store(std::span<const float> values, float* out) {
  std::ranges::copy(values, out);
}

void store(std::span<const float> values, std::uint16_t* out) {
  std::ranges::transform(values, out, bfloat16_from_float32);
}

/// Reads numbers from the rows of a tensor, in the file's order.
class StoredRows {
 public:
  StoredRows(const CheckpointTensor& tensor, std::int64_t numbers)
      : type_(*tensor.type), bytes_(tensor.bytes), blocks_(numbers / type_.block) {}

  /// Reads numbers of a row as float32, from number `first` on.
  void read(std::int64_t row, std::int64_t first, std::span<float> values) {
    const auto count = static_cast<std::int64_t>(values.size());
    const std::int64_t block = first / type_.block, begin = block * type_.block,
                       end = (first + count + type_.block - 1) / type_.block;
    const std::byte* const stored = bytes_.data() + (row * blocks_ + block) * type_.bytes;
    if (begin == first && end * type_.block == first + count) {
      type_.to_floats(stored, end - block, values.data());
      return;
    }
    whole_blocks_.resize(static_cast<std::size_t>(end * type_.block - begin));
    type_.to_floats(stored, end - block, whole_blocks_.data());
    std::ranges::copy(
        std::span(whole_blocks_).subspan(static_cast<std::size_t>(first - begin), values.size()),
        values.begin());
  }

 private:
  const GgufType& type_;
  std::span<const std::byte> bytes_;
  std::int64_t blocks_;  // of a row
  std::vector<float> whole_blocks_;
};

/// The number of columns in all slices together.
std::int64_t width_of(std::span<const Slice> slices) {
  std::int64_t width = 0;
  for (const Slice& slice : slices) width += slice.count;
  return width;
}

/// Converts these rows and columns of a tensor to Hugging Face's order, [rows.count, width_of(columns)].
/// `Number` is float, or the bits of a bfloat16.
template <typename Number>
void convert(const CheckpointTensor& tensor, const Slice& rows, std::span<const Slice> columns, Number* out) {
  const std::int64_t width = width_of(columns), all_columns = columns[0].whole;
  if (tensor.order.kind == RowOrder::Kind::kTransposed) {
    // Enough stored rows at a time to fill a cache line of the result.
    constexpr std::int64_t kTogether = 64 / sizeof(Number);
    std::vector<std::int64_t> wanted;  // columns
    for (const Slice& slice : columns) {
      for (std::int64_t i = 0; i < slice.count; ++i) wanted.push_back(slice.first + i);
    }
    in_shares(
        (width + kTogether - 1) / kTogether, rows.count * width, [&](std::int64_t begin, std::int64_t end) {
          StoredRows file(tensor, rows.whole);
          std::vector<float> stored(static_cast<std::size_t>(kTogether * rows.count));
          std::vector<float> together(kTogether);
          for (std::int64_t group = begin; group < end; ++group) {
            const std::int64_t first = group * kTogether, count = std::min(kTogether, width - first);
            for (std::int64_t i = 0; i < count; ++i) {
              file.read(wanted[static_cast<std::size_t>(first + i)], rows.first,
                        std::span(stored).subspan(static_cast<std::size_t>(i * rows.count),
                                                  static_cast<std::size_t>(rows.count)));
            }
            for (std::int64_t row = 0; row < rows.count; ++row) {
              for (std::int64_t i = 0; i < count; ++i) together[i] = stored[i * rows.count + row];
              store(std::span(together).first(static_cast<std::size_t>(count)), out + row * width + first);
            }
          }
        });
  } else if (tensor.shape.size() < 2) {
    std::vector<float> stored(static_cast<std::size_t>(all_columns)), values;
    StoredRows(tensor, all_columns).read(0, 0, stored);
    for (const Slice& slice : columns) {
      for (std::int64_t i = slice.first; i < slice.first + slice.count; ++i) {
        values.push_back(stored[static_cast<std::size_t>(tensor.order.stored_row(i, all_columns))]);
      }
    }
    store(values, out);
  } else {
    in_shares(rows.count, rows.count * width, [&](std::int64_t begin, std::int64_t end) {
      StoredRows file(tensor, all_columns);
      std::vector<float> values(static_cast<std::size_t>(width));
      for (std::int64_t row = begin; row < end; ++row) {
        std::span<float> rest = values;
        for (const Slice& slice : columns) {
          const auto count = static_cast<std::size_t>(slice.count);
          file.read(tensor.order.stored_row(rows.first + row, rows.whole), slice.first, rest.first(count));
          rest = rest.subspan(count);
        }
        store(values, out + row * width);
      }
    });
  }
}

/// Copies the given columns of `count` rows side by side, in the file's order.
void copy_columns(const std::byte* rows, std::int64_t count, std::span<const Slice> columns,
                  std::int64_t number, std::byte* out) {
  for (std::int64_t row = 0; row < count; ++row) {
    const std::byte* const from = rows + row * columns[0].whole * number;
    for (const Slice& slice : columns) {
      out = std::copy_n(from + slice.first * number, slice.count * number, out);
    }
  }
}

}  // namespace

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Checkpoint Checkpoint::open(const std::filesystem::path& model) {
  if (is_gguf(model)) return Checkpoint(GgufFile(model));
  Checkpoint checkpoint;
  const std::filesystem::path single = model / "model.safetensors";
  const std::filesystem::path index = model / "model.safetensors.index.json";
  // As in transformers, the single file takes precedence.
  if (!is_there(single)) {
    if (!is_there(index)) {
      throw Error("{} does not exist, nor does {}", single.string(), index.filename().string());
    }
    checkpoint.file_ = index;
    checkpoint.open_shards(model);
    return checkpoint;
  }
  checkpoint.file_ = single;
  const Safetensors& file = checkpoint.safetensors_.emplace_back(single);
  for (const auto& [name, tensor] : file.tensors()) {
    checkpoint.tensors_.emplace(name, from_safetensors(tensor, single));
  }
  return checkpoint;
}

void Checkpoint::open_shards(const std::filesystem::path& folder) {
  const std::map<std::string, std::string> shard_of = read_index(file_);
  std::set<std::string> names;
  for (const auto& [name, shard] : shard_of) names.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!is_there(folder / name)) missing.push_back(name);
  }
  if (!missing.empty()) {
    throw Error("{} names {} files, but {} of them {} missing: {}{}", file_.string(), names.size(),
                missing.size(), missing.size() == 1 ? "is" : "are", quote(missing[0]),
                missing.size() == 1 ? "" : ", ...");
  }

  std::map<std::string, const Safetensors*> shards;
  safetensors_.reserve(names.size());  // so that pointers to its elements stay valid
  for (const std::string& name : names) shards[name] = &safetensors_.emplace_back(folder / name);
  // A file may also hold tensors that the index does not map to it, left over from another split.
  for (const auto& [name, shard] : shard_of) {
    const StoredTensor* tensor = shards.at(shard)->find(name);
    if (!tensor) {
      throw Error("{} maps {} to {}, which has no such tensor", file_.string(), quote(name), quote(shard));
    }
    tensors_.emplace(name, from_safetensors(*tensor, folder / shard));
  }
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Checkpoint::Checkpoint(GgufFile file) : file_(file.file()) {
  const GgufFamily& family = gguf_family(file);
  for (const auto& [stored_name, stored] : file.tensors()) {
    const GgufType* const type = find_gguf_type(stored.dtype);
    CheckpointTensor tensor{stored, stored.file,
                            type != nullptr && type->to_floats != nullptr ? type : nullptr,
                            row_order(file, family, stored_name)};
    if (tensor.order.kind == RowOrder::Kind::kTransposed) std::ranges::reverse(tensor.shape);
    const std::string name = hugging_face_name(family, stored_name);
    if (!tensors_.emplace(name, std::move(tensor)).second) {
      throw Error("{} has the tensor {} under two names", stored.file.string(), quote(name));
    }
  }
  gguf_.push_back(std::move(file));
}

std::string Checkpoint::readable_types() const {
  return gguf_.empty() ? "F32, F16 and BF16" : readable_gguf_types();
}

CheckpointArray Checkpoint::read(const CheckpointTensor& tensor, DType dtype) {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  const Slice columns = tensor.shape.empty() ? 1 : tensor.shape.back();
  return read(tensor, dtype, rows, std::span(&columns, 1));
}

CheckpointArray Checkpoint::read(const CheckpointTensor& tensor, DType dtype, const Slice& rows,
                                 std::span<const Slice> columns) {
  if (tensor.type == nullptr) {
    throw Error("{}: a tensor is stored as {}; {} can be read", tensor.file.string(), tensor.dtype,
                readable_types());
  }
  prefetch(tensor, rows, columns);
  const std::int64_t width = width_of(columns);
  const auto in_memory = [&](DType type) {
    CheckpointArray array{{nullptr, type, rows.count, width},
                          memory(static_cast<std::size_t>(rows.count * width) * size_of(type))};
    array.array.data = array.memory.get();
    return array;
  };
  const bool is_quantized = tensor.type->is_quantized();
  if (!is_quantized && tensor.order.kind == RowOrder::Kind::kSame) {
    const DType stored = tensor.dtype == "F32"   ? DType::kFloat32
                         : tensor.dtype == "F16" ? DType::kFloat16
                                                 : DType::kBFloat16;
    const auto number = static_cast<std::int64_t>(size_of(stored));
    const std::byte* const first = tensor.bytes.data() + rows.first * columns[0].whole * number;
    if (columns[0].count == columns[0].whole) return {{first, stored, rows.count, width}};
    const CheckpointArray array = in_memory(stored);
    copy_columns(first, rows.count, columns, number, static_cast<std::byte*>(array.memory.get()));
    return array;
  }
  const CheckpointArray array =
      in_memory(is_quantized && dtype == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat32);
  if (array.array.dtype == DType::kBFloat16) {
    convert(tensor, rows, columns, static_cast<std::uint16_t*>(array.memory.get()));
  } else {
    convert(tensor, rows, columns, static_cast<float*>(array.memory.get()));
  }
  return array;
}

void Checkpoint::read_parts_only() {
  parts_only_ = true;
  for (const auto& [name, tensor] : tensors_) platform::read_parts_only(tensor.bytes);
}

void Checkpoint::prefetch(std::span<const std::byte> part) const {
  if (parts_only_) platform::will_need(part);
}

void Checkpoint::prefetch(const CheckpointTensor& tensor, const Slice& rows,
                          std::span<const Slice> columns) const {
  if (!parts_only_) return;
  const GgufType& type = *tensor.type;
  const bool transposed = tensor.order.kind == RowOrder::Kind::kTransposed;
  const std::int64_t row_bytes = (transposed ? rows : columns[0]).whole / type.block * type.bytes;
  // Prefetches some numbers of a stored row, rounded to whole blocks.
  const auto prefetch_numbers = [&](std::int64_t row, const Slice& numbers) {
    const std::int64_t first = numbers.first / type.block,
                       end = (numbers.first + numbers.count + type.block - 1) / type.block;
    prefetch(tensor.bytes.subspan(static_cast<std::size_t>(row * row_bytes + first * type.bytes),
                                  static_cast<std::size_t>((end - first) * type.bytes)));
  };
  for (const Slice& slice : columns) {
    if (transposed) {
      for (std::int64_t i = 0; i < slice.count; ++i) prefetch_numbers(slice.first + i, rows);
    } else if (slice.count == slice.whole && tensor.order.kind == RowOrder::Kind::kSame) {
      prefetch(tensor.bytes.subspan(static_cast<std::size_t>(rows.first * row_bytes),
                                    static_cast<std::size_t>(rows.count * row_bytes)));
    } else if (tensor.shape.size() < 2) {
      prefetch(tensor.bytes);
    } else {
      for (std::int64_t i = 0; i < rows.count; ++i) {
        prefetch_numbers(tensor.order.stored_row(rows.first + i, rows.whole), slice);
      }
    }
  }
}

std::shared_ptr<void> Checkpoint::memory(std::size_t bytes) {
  Buffer* unused = nullptr;
  for (Buffer& buffer : buffers_) {
    if (buffer.memory.use_count() > 1) continue;
    if (buffer.bytes >= bytes) return buffer.memory;
    unused = &buffer;
  }
  if (unused == nullptr) unused = &buffers_.emplace_back();
  *unused = {};  // first releases the buffer that was too small
  *unused = {platform::allocate(bytes), bytes};
  return unused->memory;
}

std::vector<float> to_floats(const HostArray& array) {
  std::vector<float> values(static_cast<std::size_t>(array.rows * array.columns));
  const auto* const bytes = static_cast<const std::byte*>(array.data);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (array.dtype == DType::kFloat32) {
      std::memcpy(&values[i], bytes + i * sizeof(float), sizeof(float));
      continue;
    }
    std::uint16_t half;
    std::memcpy(&half, bytes + i * sizeof half, sizeof half);
    values[i] = array.dtype == DType::kFloat16 ? float32_from_float16(half) : float32_from_bfloat16(half);
  }
  return values;
}

std::pair<std::vector<float>, DType> read_numbers(const std::filesystem::path& file,
                                                  const Safetensors& tensors, const std::string& name,
                                                  const std::vector<std::int64_t>& shape) {
  const StoredTensor* const tensor = tensors.find(name);
  if (tensor == nullptr)
    throw Error("{} has no tensor {}, which its configuration requires", file.string(), name);
  if (tensor->shape != shape) {
    throw Error("{}: tensor {} has shape {}, but for this model it must be {}", file.string(), name,
                to_string(tensor->shape), to_string(shape));
  }
  const std::map<std::string, DType> types{
      {"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}};
  const auto type = types.find(tensor->dtype);
  if (type == types.end()) {
    throw Error("{}: tensor {} is stored as {}; F32, F16 and BF16 can be read", file.string(), name,
                tensor->dtype);
  }
  std::vector<float> values =
      to_floats({tensor->bytes.data(), type->second, shape.size() > 1 ? shape.front() : 1, shape.back()});
  if (!all_finite(values)) throw Error("{}: tensor {} has a non-finite value", file.string(), name);
  return {std::move(values), type->second};
}

void Checkpoint::require_whole() const {
  for (const Safetensors& file : safetensors_) file.require_whole();
  for (const GgufFile& file : gguf_) file.require_whole();
}

void Checkpoint::release(const CheckpointTensor& tensor) const {
  platform::release(tensor.bytes);
}

}  // namespace staircase
