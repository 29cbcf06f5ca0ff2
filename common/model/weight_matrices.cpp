#include "common/model/weight_matrices.h"

#include <cstdint>
#include <numeric>
#include <utility>

#include "common/base/error.h"
#include "common/model/checkpoint.h"
#include "common/model/family.h"

namespace staircase {
namespace {

/// The weights on the host.
WeightMatrix unpacked(Device& device, std::string name, const Weight& weight) {
  // Reads the rows of all outputs as if they were embeddings, each in its own sequence.
  const std::int64_t outputs = weight.out_features, inputs = weight.in_features;
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(outputs + 1));
  std::iota(numbers.begin(), numbers.end(), 0);
  Tensor ascending = device.allocate(DType::kInt32, {outputs + 1});
  Tensor starts = device.allocate(DType::kInt32, {outputs});
  Tensor embedded = device.allocate(DType::kFloat32, {outputs, inputs});
  device.copy_from_host(numbers, ascending);
  device.copy_from_host(std::vector<std::int32_t>(static_cast<std::size_t>(outputs)), starts);
  device.embedding({ascending.rows(0, outputs), ascending, starts}, weight, Tensor(), embedded);
  std::vector<float> values(static_cast<std::size_t>(embedded.size()));
  device.copy_to_host(embedded, values);
  return {std::move(name), static_cast<std::size_t>(inputs), std::move(values)};
}

}  // namespace

void for_each_matrix(const Model& model, const std::function<void(const WeightMatrix& matrix)>& look) {
  model.network().visit_weights(
      [&](const std::string& name, Weight& weight) { look(unpacked(model.device(), name, weight)); });
}

Model with_matrices(const Model& model,
                    const std::function<std::vector<float>(const WeightMatrix& matrix)>& change) {
  Model changed = model.load_as(model.dtype());
  Device& device = model.device();
  changed.network().visit_weights([&](const std::string& name, Weight& weight) {
    const std::vector<float> values = change(unpacked(device, name, weight));
    weight = device.load_weight({values.data(), DType::kFloat32, weight.out_features, weight.in_features},
                                WeightOrder::kOutputFirst, weight.packed.dtype());
  });
  return changed;
}

std::map<std::string, std::vector<float>> stored_weights(const Model& model, std::string_view family) {
  const std::string& own_family = model.config().family;
  if (own_family != family)
    throw Error("this needs the weights of a {}, but the model is a {}", family, own_family);
  Checkpoint checkpoint = Checkpoint::open(model.path());
  const std::string_view prefix = find_family(own_family)->prefix;
  std::map<std::string, std::vector<float>> weights;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!checkpoint.is_readable(tensor)) continue;
    const std::string_view own =
        name.starts_with(prefix) ? std::string_view(name).substr(prefix.size()) : name;
    weights[std::string(own)] = to_floats(checkpoint.read(tensor, DType::kFloat32).array);
  }
  checkpoint.require_whole();
  return weights;
}

}  // namespace staircase
