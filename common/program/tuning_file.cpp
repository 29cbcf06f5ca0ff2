#include "common/program/tuning_file.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/base/message.h"

namespace staircase {
namespace {

using nlohmann::json;

constexpr const char* kVariable = "STAIRCASE_TUNING";
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4};

/// The card's name for a file name: "nvidia-h200" for "NVIDIA H200".
std::string in_file_name(const std::string& card) {
  std::string name;
  for (const char c : card) {
    const bool is_upper = c >= 'A' && c <= 'Z', is_kept = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (is_upper || is_kept) {
      name += is_upper ? static_cast<char>(c - 'A' + 'a') : c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  return name.ends_with('-') ? name.substr(0, name.size() - 1) : name;
}

/// The whole number under `key`, which must be at least `least`. Throws Error for anything else.
int number(const json& product, const char* key, int least, const std::string& file) {
  const auto found = product.find(key);
  if (found == product.end()) throw Error("{}: a product has no {}", file, quote(key));
  constexpr int kMost = std::numeric_limits<int>::max();
  if (!found->is_number_integer() || *found < least || *found > kMost) {
    throw Error("{}: {} is {}, but it must be a whole number of at least {}", file, quote(key), shown(*found),
                least);
  }
  return *found;
}

cuda::ProductShape read_shape(const json& product, const std::string& file) {
  cuda::ProductShape shape{};
  shape.rows = number(product, "rows", 1, file);
  shape.in = number(product, "in", 1, file);
  shape.out = number(product, "out", 1, file);
  const json dtype = product.value("dtype", json()), gated = product.value("gated", json());
  const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                 [&](DType each) { return dtype == std::string(to_string(each)); });
  if (type == std::end(kTypes))
    throw Error("{}: \"dtype\" is {}, which is not a data type of weights", file, shown(dtype));
  if (!gated.is_boolean())
    throw Error("{}: \"gated\" is {}, but it must be true or false", file, shown(gated));
  shape.dtype = *type;
  shape.is_gated = gated;
  return shape;
}

}  // namespace

std::filesystem::path tuning_file(const std::string& card) {
  if (const char* const file = std::getenv(kVariable)) return file;
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache != nullptr && *cache != '\0') {
    folder = cache;
  } else if (home != nullptr && *home != '\0') {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  return folder / "staircase" / ("tuning-" + in_file_name(card) + ".json");
}

cuda::Tuning read_tuning(std::string_view text, const std::string& card, const std::string& file) {
  const json table = parse_json_object(text, file);
  const json of_card = table.value("card", json()), products = table.value("products", json());
  if (!of_card.is_string() || !products.is_array())
    throw Error("{} is not a table of a GPU: it needs \"card\", a name, and \"products\", a list", file);
  if (of_card != card) throw Error("{} is for {}, but this is {}", file, shown(of_card), quote(card));
  cuda::Tuning tuning;
  for (const json& product : products) {
    if (!product.is_object())
      throw Error("{}: a product is {}, but it must be an object", file, shown(product));
    const cuda::ProductShape shape = read_shape(product, file);
    const cuda::Form form{number(product, "lanes", 1, file), number(product, "inputs", 0, file),
                          number(product, "blocks", 0, file)};
    const auto forms = cuda::forms_of(shape);
    if (std::find(forms.begin(), forms.end(), form) == forms.end()) {
      throw Error(
          "{}: this program has no kernel of {} lanes, {} inputs and {} blocks for a product of {} to {}",
          file, form.lanes, form.inputs, form.blocks, shape.in, shape.out);
    }
    tuning.forms[shape] = form;
  }
  return tuning;
}

std::string written(const cuda::Tuning& tuning, const std::string& card) {
  std::string products;
  for (const auto& [shape, form] : tuning.forms) {
    products += fmt::format(
        R"({}
  {{"rows": {}, "in": {}, "out": {}, "dtype": "{}", "gated": {}, "lanes": {}, "inputs": {}, "blocks": {}}})",
        products.empty() ? "" : ",", shape.rows, shape.in, shape.out, to_string(shape.dtype), shape.is_gated,
        form.lanes, form.inputs, form.blocks);
  }
  return fmt::format("{{\"card\": {}, \"products\": [{}\n]}}\n", in_json(card), products);
}

void use_tuning(Device& device) {
  const std::string card = device.card();
  if (card.empty()) return;
  const std::filesystem::path file = tuning_file(card);
  const bool is_named = std::getenv(kVariable) != nullptr;
  if (file.empty() || (!is_named && !is_there(file))) return;
  try {
    device.use(read_tuning(read_text_file(file), card, file.string()));
  } catch (const std::exception& error) {
    if (is_named) throw Error("{}: {}", kVariable, error.what());
    warn("{}; the default kernels run until tools/gpu-check --tune has measured this GPU", error.what());
  }
}

}  // namespace staircase
