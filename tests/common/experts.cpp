// A mixture of experts in each form in which its weights come, in pieces of ranks, and in broken files.
// families.cpp compares the same models with transformers.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/decoding/memory_estimate.h"
#include "common/model/checkpoint.h"
#include "common/model/llama.h"
#include "common/model/model.h"
#include "common/model/plain_weights.h"
#include "common/model/weight_matrices.h"
#include "common/parallel/ranks.h"
#include "tests/compare.h"
#include "tests/error_message.h"
#include "tests/gguf_writer.h"
#include "tests/temporary_folder.h"
#include "tests/test_device.h"

namespace staircase {
namespace {

const std::filesystem::path kFamilies =
    std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference/families";
const std::vector<std::string> kMixtures{"mixtral", "olmoe", "qwen3-moe"};
const std::vector<int> kText{2054, 687, 258, 516, 427, 307, 258, 881, 2724, 386, 339};

struct Numbers {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};
using Tensors = std::map<std::string, Numbers>;

/// The tensors of a folder by their names.
Tensors tensors_in(const std::filesystem::path& folder) {
  Checkpoint checkpoint = Checkpoint::open(folder);
  Tensors tensors;
  for (const auto& [name, tensor] : checkpoint.tensors())
    tensors[name] = {tensor.shape, to_floats(checkpoint.read(tensor, DType::kFloat32).array)};
  return tensors;
}

nlohmann::json settings_in(const std::filesystem::path& folder) {
  return nlohmann::json::parse(std::ifstream(folder / "config.json"));
}

/// Writes a model's folder.
void write(const TemporaryFolder& folder, const nlohmann::json& settings, const Tensors& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t first = data.size();
    for (const float value : tensor.values) data += raw(value);
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {first, data.size()}}};
  }
  folder.write("config.json", settings.dump());
  folder.write("model.safetensors", raw<std::uint64_t>(header.dump().size()) + header.dump() + data);
}

/// The name of an expert's matrix with these words in the place of "gate_proj", "up_proj" and "down_proj", or
/// of Mixtral's "w1", "w3" and "w2"; the place of its number is left empty.
struct ExpertName {
  std::string before, after;
  std::size_t expert;
};

/// Splits "….experts.3.up_proj.weight"; false for other tensors.
bool split_name(const std::string& name, ExpertName& parts) {
  const std::string word = ".experts.";
  const auto place = name.find(word);
  if (place == name.npos) return false;
  const auto number = place + word.size(), end = name.find('.', number);
  parts = {name.substr(0, number), name.substr(end + 1), std::stoul(name.substr(number, end - number))};
  for (const auto& [old, own] : {std::pair{"w1.", "gate_proj."}, {"w3.", "up_proj."}, {"w2.", "down_proj."}})
    if (parts.after.starts_with(old)) parts.after.replace(0, 3, own);
  return true;
}

/// All experts' matrices as one tensor: "….experts.up_proj.weight" [experts, out, in].
Tensors stacked(const Tensors& tensors) {
  std::map<std::string, std::map<std::size_t, Numbers>> experts;
  Tensors result;
  for (const auto& [name, tensor] : tensors) {
    ExpertName parts;
    if (split_name(name, parts)) {
      experts[parts.before + parts.after][parts.expert] = tensor;
    } else {
      result[name] = tensor;
    }
  }
  for (const auto& [name, each] : experts) {
    Numbers all{{std::ssize(each), each.at(0).shape[0], each.at(0).shape[1]}, {}};
    for (const auto& [number, expert] : each)
      all.values.insert(all.values.end(), expert.values.begin(), expert.values.end());
    result[name] = all;
  }
  return result;
}

/// As transformers 5 keeps them: gates and what they gate in one tensor, and no ".weight".
Tensors fused(const Tensors& tensors) {
  Tensors result;
  for (auto& [stored, tensor] : stacked(tensors)) {
    std::string name = stored;
    if (const auto old = name.find("block_sparse_moe"); old != name.npos) name.replace(old, 16, "mlp");
    const auto end = name.find(".experts.");
    if (end == name.npos) {
      result[name] = tensor;
    } else if (name.ends_with("down_proj.weight")) {
      result[name.substr(0, name.size() - 7)] = tensor;
    } else {
      const std::int64_t experts = tensor.shape[0], rows = tensor.shape[1], columns = tensor.shape[2];
      Numbers& both = result[name.substr(0, end + 9) + "gate_up_proj"];
      both.shape = {experts, 2 * rows, columns};
      both.values.resize(static_cast<std::size_t>(2 * experts * rows * columns));
      const bool is_up = name.ends_with("up_proj.weight");
      for (std::int64_t e = 0; e < experts; ++e) {
        std::copy_n(tensor.values.begin() + e * rows * columns, rows * columns,
                    both.values.begin() + (2 * e + (is_up ? 1 : 0)) * rows * columns);
      }
    }
  }
  return result;
}

std::vector<float> logits_of(const std::filesystem::path& path, DType dtype = DType::kFloat32) {
  Model model = Model::load(path, make_test_device(2), dtype);
  const std::span<const float> logits = model.next_logits(kText);
  return {logits.begin(), logits.end()};
}

TEST_CASE("experts in one tensor, as transformers 5 keeps them, are those with a matrix for each") {
  for (const std::string& name : kMixtures) {
    CAPTURE(name);
    const TemporaryFolder folder;
    write(folder, settings_in(kFamilies / name), fused(tensors_in(kFamilies / name)));
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8, DType::kInt4})
      CHECK(logits_of(folder.path(), dtype) == logits_of(kFamilies / name, dtype));
  }
}

/// One of two ranks, the other of which says the same.
class OneOfTwo : public Ranks {
 public:
  explicit OneOfTwo(int rank) : Ranks(rank, 2) {}

 private:
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    std::ranges::copy(own, all.begin());
    std::ranges::copy(own, all.begin() + std::ssize(own));
  }
  void post(std::span<const std::byte> /*bytes*/, int /*to*/) override {}
  std::size_t take(std::span<std::byte> /*bytes*/, int /*from*/) override { return 0; }
};

TEST_CASE("each rank takes its part of experts in one tensor, as of a matrix for each") {
  for (const std::string name : {"mixtral", "qwen3-moe"}) {  // of OLMoE, ranks take whole blocks
    CAPTURE(name);
    const TemporaryFolder folder;
    write(folder, settings_in(kFamilies / name), fused(tensors_in(kFamilies / name)));
    std::map<std::string, std::vector<float>> parts[2];
    for (const int number : {0, 1}) {
      const auto matrices_of = [&](const std::filesystem::path& path) {
        OneOfTwo rank(number);
        std::map<std::string, std::vector<float>> found;
        const Model model = Model::load(path, make_cpu_device(1), DType::kFloat32, rank);
        for_each_matrix(model, [&](const WeightMatrix& matrix) { found[matrix.name] = matrix.values; });
        return found;
      };
      parts[number] = matrices_of(kFamilies / name);
      CHECK(matrices_of(folder.path()) == parts[number]);
    }
    CHECK(parts[0] != parts[1]);
  }
}

/// In each head, the two rows that rotate together become neighbours, as in GGUF files of Llama.
std::vector<float> paired(const Numbers& matrix, std::int64_t heads) {
  const std::int64_t rows = matrix.shape[0] / heads, columns = matrix.shape[1];
  std::vector<float> turned(matrix.values.size());
  for (std::int64_t row = 0; row < matrix.shape[0]; ++row) {
    const std::int64_t place = row % rows, to = row - place + place % (rows / 2) * 2 + place / (rows / 2);
    std::copy_n(matrix.values.begin() + row * columns, columns, turned.begin() + to * columns);
  }
  return turned;
}

/// The model in that folder as llama.cpp's converter writes it.
std::string as_gguf(const std::filesystem::path& folder) {
  const nlohmann::json settings = settings_in(folder);
  const std::string type = settings.at("model_type");
  const std::string family = type == "mixtral" ? "llama" : type == "qwen3_moe" ? "qwen3moe" : type;
  const auto number = [&](const char* key) { return settings.at(key).get<std::uint32_t>(); };
  GgufWriter file;
  file.text("general.architecture", family);
  for (const auto& [key, setting] : {std::pair{"block_count", "num_hidden_layers"},
                                     {"context_length", "max_position_embeddings"},
                                     {"embedding_length", "hidden_size"},
                                     {"feed_forward_length", "intermediate_size"},
                                     {"attention.head_count", "num_attention_heads"},
                                     {"attention.head_count_kv", "num_key_value_heads"},
                                     {"expert_used_count", "num_experts_per_tok"}})
    file.number(family + "." + key, number(setting));
  file.number(family + ".expert_count", number(type == "olmoe" ? "num_experts" : "num_local_experts"));
  if (type == "qwen3_moe") {
    file.number(family + ".expert_feed_forward_length", number("moe_intermediate_size"));
    file.number(family + ".attention.key_length", 32).number(family + ".attention.value_length", 32);
  }
  file.real(family + ".attention.layer_norm_rms_epsilon", settings.at("rms_norm_eps").get<float>());
  file.real(family + ".rope.freq_base", settings.at("rope_parameters").at("rope_theta").get<float>());
  const std::pair<std::string, std::string> names[] = {{"model.embed_tokens", "token_embd"},
                                                       {"model.norm", "output_norm"},
                                                       {"lm_head", "output"},
                                                       {"model.layers.", "blk."},
                                                       {"self_attn.q_proj", "attn_q"},
                                                       {"self_attn.k_proj", "attn_k"},
                                                       {"self_attn.v_proj", "attn_v"},
                                                       {"self_attn.o_proj", "attn_output"},
                                                       {"self_attn.q_norm", "attn_q_norm"},
                                                       {"self_attn.k_norm", "attn_k_norm"},
                                                       {"input_layernorm", "attn_norm"},
                                                       {"post_attention_layernorm", "ffn_norm"},
                                                       {"block_sparse_moe.", "mlp."},
                                                       {"mlp.gate.", "ffn_gate_inp."},
                                                       {"mlp.experts.gate_proj", "ffn_gate_exps"},
                                                       {"mlp.experts.up_proj", "ffn_up_exps"},
                                                       {"mlp.experts.down_proj", "ffn_down_exps"},
                                                       {"mlp.gate_proj", "ffn_gate"},
                                                       {"mlp.up_proj", "ffn_up"},
                                                       {"mlp.down_proj", "ffn_down"}};
  for (const auto& [stored, tensor] : stacked(tensors_in(folder))) {
    std::string name = stored;
    for (const auto& [from, to] : names) {
      const auto place = name.find(from);
      if (place != name.npos) name.replace(place, from.size(), to);
    }
    std::vector<float> values = tensor.values;
    if (family == "llama" && name.ends_with("attn_q.weight")) values = paired(tensor, 4);
    if (family == "llama" && name.ends_with("attn_k.weight")) values = paired(tensor, 2);
    file.floats(name, {tensor.shape.rbegin(), tensor.shape.rend()}, values);
  }
  return file.bytes();
}

TEST_CASE("a mixture in a GGUF file has the logits of its folder") {
  for (const std::string& name : kMixtures) {
    CAPTURE(name);
    const TemporaryFolder folder;
    const auto path = folder.write("model.gguf", as_gguf(kFamilies / name));
    CHECK(logits_of(path) == logits_of(kFamilies / name));
  }
}

TEST_CASE("the formula of the activations counts what experts need, each as if it had all rows") {
  for (const std::string& name : kMixtures) {
    CAPTURE(name);
    Model model = Model::load(kFamilies / name, make_test_device(1));
    constexpr int kTokens = 200;
    model.next_logits(std::vector<int>(kTokens, 881));  // equal tokens choose alike, so one expert has all
    const ModelConfig& config = model.config();
    const std::size_t indices = 4 * (kTokens + 4);  // which it leaves out
    CHECK(model.activation_bytes() - indices <= activation_bytes(config, kTokens));
    CHECK(static_cast<double>(model.activation_bytes()) > 0.97 * activation_bytes(config, kTokens));
  }
}

TEST_CASE("the lessons refuse mixtures by name, in plain loops and with the engine's operations") {
  for (const std::string& name : kMixtures) {
    const Model model = Model::load(kFamilies / name, make_test_device(2));
    const std::string& family = model.config().family;
    CHECK(says(error_message([&] { plain_weights(model, "llama"); }), family,
               family == "qwen3_moe" ? "which 111-experts adds" : "no step has in plain loops"));
    CHECK(says(error_message([&] { llama_weights(model); }), "the model is a " + family));
  }
}

TEST_CASE("plain weights of a mixture are the same in each form, and need shares that sum to 1") {
  const std::filesystem::path path = kFamilies / "qwen3-moe";
  const auto weights = [](const std::filesystem::path& of) {
    return plain_weights(Model::load(of, make_test_device(1)), "qwen3_moe");
  };
  const std::map<std::string, std::vector<float>> want = weights(path);
  CHECK(want.at("layers.2.mlp.gate.weight").size() == 64 * 8);
  CHECK(want.at("layers.2.mlp.experts.7.down_proj.weight").size() == 48 * 64);
  const Tensors stored = tensors_in(path);
  // W[i, o] of plain loops is the file's [o, i].
  CHECK(want.at("layers.2.mlp.gate.weight")[5 * 8 + 3] ==
        stored.at("model.layers.2.mlp.gate.weight").values[3 * 64 + 5]);
  CHECK(want.at("layers.2.mlp.experts.7.down_proj.weight")[5 * 64 + 3] ==
        stored.at("model.layers.2.mlp.experts.7.down_proj.weight").values[3 * 48 + 5]);
  const TemporaryFolder folder;
  write(folder, settings_in(path), fused(stored));
  CHECK((weights(folder.path()) == want));
  CHECK((weights(folder.write("model.gguf", as_gguf(path))) == want));
  nlohmann::json settings = settings_in(path);
  settings["norm_topk_prob"] = false;
  write(folder, settings, stored);
  CHECK(says(error_message([&] { weights(folder.path()); }), "norm_topk_prob", "no step has in plain loops"));
}

TEST_CASE("files of a mixture that lack something, or hold another number of it, are refused by its name") {
  const Tensors whole = tensors_in(kFamilies / "qwen3-moe");
  const nlohmann::json settings = settings_in(kFamilies / "qwen3-moe");
  const auto error = [&](const nlohmann::json& more, const Tensors& tensors) {
    const TemporaryFolder folder;
    nlohmann::json changed = settings;
    changed.update(more);
    write(folder, changed, tensors);
    return error_message([&] { Model::load(folder.path(), make_test_device(1)); });
  };
  const nlohmann::json none = nlohmann::json::object();
  CHECK(error(none, whole) == "");
  const std::string mlp = "model.layers.2.mlp.";
  for (const char* one : {"experts.7.up_proj.weight", "experts.0.gate_proj.weight",
                          "experts.3.down_proj.weight", "gate.weight"}) {
    Tensors fewer = whole;
    fewer.erase(mlp + one);
    CHECK(says(error(none, fewer), "has no tensor", std::string("layers.2.mlp.") + one));
  }
  for (const float broken : {HUGE_VALF, NAN}) {
    Tensors numbers = whole;
    numbers.at(mlp + "gate.weight").values[70] = broken;
    CHECK(says(error(none, numbers), mlp + "gate.weight", "non-finite"));
    numbers = whole;
    numbers.at(mlp + "experts.5.down_proj.weight").values[9] = broken;
    CHECK(says(error(none, numbers), mlp + "experts.5.down_proj.weight", "non-finite"));
  }
  CHECK(says(error({{"num_local_experts", 9}}, whole), "gate.weight has shape [8, 64]", "[9, 64]"));
  CHECK(says(error({{"num_local_experts", 7}}, whole), "gate.weight has shape [8, 64]", "[7, 64]"));
  CHECK(
      says(error({{"moe_intermediate_size", 47}}, whole), "gate_proj.weight has shape [48, 64]", "[47, 64]"));
  Tensors all = fused(whole);
  all.at(mlp + "experts.gate_up_proj").shape = {4, 192, 64};
  CHECK(says(error(none, all), "experts.gate_up_proj has shape [4, 192, 64]", "[8, 96, 64]"));
}

}  // namespace
}  // namespace staircase
