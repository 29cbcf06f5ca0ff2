#include "common/model/checkpoint.h"

#include <cstring>
#include <set>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "kernels/half.h"
#include "kernels/platform.h"

namespace staircase {

using nlohmann::json;

namespace {

const std::map<std::string, DType, std::less<>> kReadable{
    {"F32", DType::kFloat32}, {"F16", DType::kFloat16}, {"BF16", DType::kBFloat16}};

/// Which file holds which tensor: the index's weight_map.
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
      throw Error("{}: weight_map has {} for {}, not the name of a file", file.string(), shown(shard),
                  quote(name));
    }
    const std::string shard_name = shard.get<std::string>();
    // An index comes from elsewhere: it may name files beside it, and no others.
    if (shard_name.find_first_of("/\\:") != shard_name.npos || !shard_name.ends_with(".safetensors")) {
      throw Error("{}: weight_map has {} for {}, not a .safetensors file of the same folder", file.string(),
                  quote(shard_name), quote(name));
    }
    shards.emplace(name, shard_name);
  }
  return shards;
}

}  // namespace

Checkpoint::~Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;

Checkpoint Checkpoint::open(const std::filesystem::path& model) {
  Checkpoint checkpoint;
  std::error_code ignored;
  const std::filesystem::path single = model / "model.safetensors";
  const std::filesystem::path index = model / "model.safetensors.index.json";
  // As in transformers, the single file wins.
  if (!std::filesystem::exists(single, ignored)) {
    if (!std::filesystem::exists(index, ignored)) {
      throw Error("{} does not exist, nor does {}", single.string(), index.filename().string());
    }
    checkpoint.file_ = index;
    checkpoint.open_shards(model);
    return checkpoint;
  }
  checkpoint.file_ = single;
  const Safetensors& file = checkpoint.safetensors_.emplace_back(single);
  for (const auto& [name, tensor] : file.tensors())
    checkpoint.tensors_.emplace(name, CheckpointTensor{tensor, single});
  return checkpoint;
}

void Checkpoint::open_shards(const std::filesystem::path& folder) {
  const std::map<std::string, std::string> shard_of = read_index(file_);
  std::set<std::string> names;
  for (const auto& [name, shard] : shard_of) names.insert(shard);
  std::vector<std::string> missing;
  std::error_code ignored;
  for (const std::string& name : names) {
    if (!std::filesystem::exists(folder / name, ignored)) missing.push_back(name);
  }
  if (!missing.empty()) {
    throw Error("{} names {} files, and {} of them {} missing: {}{}", file_.string(), names.size(),
                missing.size(), missing.size() == 1 ? "is" : "are", quote(missing[0]),
                missing.size() == 1 ? "" : ", ...");
  }

  std::map<std::string, const Safetensors*> shards;
  safetensors_.reserve(names.size());  // so that no pointer to one moves
  for (const std::string& name : names) shards[name] = &safetensors_.emplace_back(folder / name);
  // A file may hold more than the index maps to it, as left-overs of another split.
  for (const auto& [name, shard] : shard_of) {
    const StoredTensor* tensor = shards.at(shard)->find(name);
    if (!tensor) {
      throw Error("{} says that {} is in {}, which has no such tensor", file_.string(), quote(name),
                  quote(shard));
    }
    tensors_.emplace(name, CheckpointTensor{*tensor, folder / shard});
  }
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

bool Checkpoint::is_readable(const CheckpointTensor& tensor) const {
  return kReadable.contains(tensor.dtype);
}

CheckpointArray Checkpoint::read(const CheckpointTensor& tensor, [[maybe_unused]] DType dtype) {
  const bool is_matrix = tensor.shape.size() == 2;
  return {{tensor.bytes.data(), kReadable.at(tensor.dtype), is_matrix ? tensor.shape[0] : 1,
           tensor.shape.back()}};
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

void Checkpoint::release(const CheckpointTensor& tensor) const {
  platform::release(tensor.bytes);
}

}  // namespace staircase
