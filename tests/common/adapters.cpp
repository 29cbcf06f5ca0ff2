// Adapters: against transformers with PEFT for each family, rows of different adapters in one batch, and
// folders that are refused.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "common/decoding/paged_kv_cache.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"
#include "tests/compare.h"
#include "tests/error_message.h"
#include "tests/same_logits.h"
#include "tests/temporary_folder.h"
#include "tests/test_device.h"
#include "tests/transformers.h"

namespace staircase {
namespace {

using Tokens = std::vector<int>;
using Floats = std::vector<float>;
using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kReference = fs::path(STAIRCASE_SOURCE_TREE) / "tests/reference";
const std::vector<std::string> kFamilies{"gpt2",    "pythia",  "neox-sequential", "olmo",
                                         "llama-3", "smollm2", "mistral-window",  "qwen2",
                                         "qwen3",   "gemma3",  "qwen3-moe"};

/// A GPU adds in other orders.
const double kTolerance = tests_are_for_gpu() ? 1e-3 : 1e-4;

fs::path adapter_of(const std::string& family) {
  return kReference / "adapters" / family;
}

Model load(const std::string& family, DType dtype = DType::kFloat32) {
  return Model::load(kReference / "families" / family, make_test_device(2), dtype);
}

Floats copied(std::span<const float> values) {
  return {values.begin(), values.end()};
}

json read_json(const fs::path& file) {
  std::ifstream stream(file);
  return json::parse(stream);
}

/// A copy of a family's adapter that a test may change.
struct Copy {
  TemporaryFolder folder;
  fs::path path = folder.path() / "adapter";
  json config;

  explicit Copy(const std::string& family = "llama-3") {
    fs::copy(adapter_of(family), path);
    config = read_json(path / "adapter_config.json");
  }

  /// With another value for a key of its configuration.
  const fs::path& with(const char* key, const json& value) {
    json changed = config;
    changed[key] = value;
    folder.write("adapter/adapter_config.json", changed.dump());
    return path;
  }

  /// With other tensors: `change` gets those of the file, name to header and bytes.
  const fs::path& with_tensors(const std::function<void(json& header, std::string& bytes)>& change) {
    const fs::path file = path / "adapter_model.safetensors";
    std::ifstream in(adapter_of("llama-3") / "adapter_model.safetensors", std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(in)), {});
    std::uint64_t size = 0;
    std::memcpy(&size, whole.data(), sizeof size);
    json header = json::parse(whole.substr(8, size));
    std::string bytes = whole.substr(8 + size);
    change(header, bytes);
    const std::string text = header.dump();
    size = text.size();
    std::string written(reinterpret_cast<const char*>(&size), sizeof size);
    folder.write("adapter/adapter_model.safetensors", written + text + bytes);
    return path;
  }
};

/// What the model says to that adapter.
std::string refusal(const std::string& family, const fs::path& folder) {
  Model model = load(family);
  return error_message([&] { model.load_adapters({&folder, 1}); });
}

TEST_CASE("with an adapter the logits of every family are those of transformers with PEFT") {
  for (const std::string& family : kFamilies) {
    Model model = load(family);
    const fs::path folder = adapter_of(family);
    model.load_adapters({&folder, 1});
    const json reference = read_json(folder / "reference.json");
    for (const json& one : reference.at("cases")) {
      const Tokens ids = one.at("ids"), places = one.at("places");
      const Floats want = one.at("logits");
      CAPTURE(family);
      CAPTURE(ids.size());
      model.use_adapters({0});
      const Floats adapted = copied(model.next_logits(ids));
      CHECK(difference("logits", at(adapted, places), want, places.size(), kTolerance * largest(want)) == "");
      CHECK(log_sum_exp(adapted) == doctest::Approx(one.at("log_sum_exp").get<double>()).epsilon(1e-5));
      StaticKvCache cache(model);  // and token by token
      Floats last;
      for (const int id : ids) last = copied(model.next_logits(Tokens{id}, cache));
      CHECK(difference("by a cache", at(last, places), want, places.size(), kTolerance * largest(want)) ==
            "");
      model.use_adapters({});
      CHECK(difference("without", at(model.next_logits(ids), places), want, places.size(),
                       kTolerance * largest(want)) != "");
    }
  }
}

TEST_CASE("rows of different adapters, and of none, get in one batch what each gets alone") {
  const std::vector<Tokens> texts{{5, 9, 200, 7}, {11}, {40, 41, 42, 43, 44, 45, 46}, {3, 1}, {17, 18, 19}};
  const std::vector<std::int32_t> whose{1, 0, kNoAdapter, 2, 0};
  for (const std::string family : {"gpt2", "llama-3", "pythia"}) {
    Copy other(family), third(family);
    other.with("lora_alpha", -20);
    third.with("use_rslora", family != "pythia");
    const std::vector<fs::path> folders{adapter_of(family), other.path, third.path};
    for (const DType dtype : weight_dtypes()) {
      CAPTURE(family);
      CAPTURE(to_string(dtype));
      // A GPU rounds x to fewer bits for more rows.
      if (tests_are_for_gpu() && is_quantized(dtype)) continue;
      const float within = !tests_are_for_gpu()        ? 0.0f
                           : dtype == DType::kFloat16  ? 2e-2f
                           : dtype == DType::kBFloat16 ? 1e-1f
                                                       : 1e-3f;
      Model plain = load(family, dtype), model = load(family, dtype);
      model.load_adapters(folders);
      std::vector<Floats> alone;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        if (whose[i] == kNoAdapter) {
          alone.push_back(copied(plain.next_logits(texts[i])));
        } else {
          model.use_adapters({whose[i]});
          alone.push_back(copied(model.next_logits(texts[i])));
        }
      }
      model.use_adapters(whose);
      const std::vector<std::span<const int>> batch(texts.begin(), texts.end());
      const auto check = [&](std::span<const float> logits, const char* how) {
        INFO(how);
        const std::size_t width = logits.size() / texts.size();
        for (std::size_t i = 0; i < texts.size(); ++i) {
          CAPTURE(i);
          CHECK(logit_difference(logits.subspan(i * width, width), alone[i], within) == "");
        }
      };
      check(model.next_logits(batch), "without a cache");
      PagedKvCache cache(model, 5, 20);
      // All but the last token of each text, where there are any; the rows of the others rest.
      std::vector<std::span<const int>> first, last;
      for (const Tokens& text : texts) {
        first.push_back(std::span(text).first(text.size() - 1));
        last.push_back(std::span(text).last(1));
      }
      for (int r = 0; r < 5; ++r) REQUIRE(cache.reserve(r, 16));
      model.next_logits(first, cache);
      if (dtype == DType::kFloat32) check(model.next_logits(last, cache), "with a cache");
    }
  }
}

TEST_CASE("beside an adapter in bfloat16 one in float32 keeps all its bits, whichever comes first") {
  Copy rounded;
  rounded.with_tensors([](json& header, std::string& bytes) {
    std::string upper;  // halves
    for (std::size_t i = 0; i < bytes.size(); i += 4) upper += bytes.substr(i + 2, 2);
    bytes = upper;
    for (auto& tensor : header) {
      if (!tensor.contains("dtype")) continue;
      tensor["dtype"] = "BF16";
      for (json& offset : tensor["data_offsets"]) offset = offset.get<std::size_t>() / 2;
    }
  });
  const Tokens text{5, 9, 200, 7};
  Model model = load("llama-3");
  const auto logits = [&](const std::vector<fs::path>& folders, std::int32_t adapter) {
    model.load_adapters(folders);
    model.use_adapters({adapter});
    return copied(model.next_logits(text));
  };
  const fs::path whole = adapter_of("llama-3");
  const Floats alone = logits({whole}, 0), narrow = logits({rounded.path}, 0);
  CHECK(alone != narrow);
  CHECK(logits({whole, rounded.path}, 0) == alone);
  CHECK(logits({rounded.path, whole}, 1) == alone);
  CHECK(logits({whole, rounded.path}, 1) == narrow);
}

TEST_CASE("a pass whose wanted rows are as many as its tokens still knows the adapter of each") {
  // One sequence of two tokens, of which the last counts, and one that rests: two rows are wanted.
  Model model = load("gpt2");
  const std::vector<fs::path> folders{adapter_of("gpt2"), adapter_of("gpt2")};
  model.load_adapters(folders);
  const Tokens text{5, 9}, none;
  model.use_adapters({0});
  const Floats alone = copied(model.next_logits(text));
  const std::vector<std::span<const int>> batch{none, text};
  model.use_adapters({kNoAdapter, 0});
  const std::span<const float> logits = model.next_logits(batch);
  CHECK(other_logits(logits.subspan(alone.size()), alone) == "");
}

TEST_CASE("logits after several tokens, long prompts in parts and another type keep the adapter") {
  Model model = load("llama-3");
  const fs::path folder = adapter_of("llama-3");
  model.load_adapters({&folder, 1});
  model.use_adapters({0});
  const Tokens text{5, 9, 200, 7, 8, 300};
  const Floats all = copied(model.last_logits(text, 3));
  const std::size_t width = all.size() / 3;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto beginning = std::span(text).first(4 + i);
    CHECK(difference("logits", copied(std::span(all).subspan(i * width, width)),
                     copied(model.next_logits(beginning)), width, 1e-4) == "");
  }
  Model narrow = model.load_as(DType::kBFloat16);
  const Floats want = copied(model.next_logits(text));
  CHECK(difference("in bfloat16", copied(narrow.next_logits(text)), want, width, 0.15 * largest(want)) == "");
}

TEST_CASE("all-linear, a pattern and a list of the same names mean the same products") {
  const Tokens text{5, 9, 200, 7};
  Model model = load("llama-3");
  Copy adapter;
  const auto logits = [&] {
    model.load_adapters({&adapter.path, 1});
    model.use_adapters({0});
    return copied(model.next_logits(text));
  };
  adapter.with("target_modules", adapter.config.at("target_modules"));
  const Floats listed = logits();
  for (const json& targets :
       {json("all-linear"), json(R"(.*\.(self_attn|mlp)\.[a-z]+_proj)"),
        json({"q_proj", "self_attn.k_proj", "v_proj", "o_proj", "mlp.gate_proj", "up_proj", "down_proj"})}) {
    CAPTURE(targets);
    adapter.with("target_modules", targets);
    CHECK(logits() == listed);
  }
  adapter.with("use_rslora", true);
  CHECK(logits() != listed);
}

TEST_CASE("a pattern of alternatives gives its value to each of them") {
  const Tokens text{5, 9, 200, 7};
  Model model = load("llama-3");
  const auto logits = [&](const json& alphas) {
    Copy adapter;
    model.load_adapters({&adapter.with("alpha_pattern", alphas), 1});
    model.use_adapters({0});
    return copied(model.next_logits(text));
  };
  const Floats both = logits({{"v_proj", 50}, {"down_proj", 50}});
  CHECK(logits({{"v_proj|down_proj", 50}}) == both);
  CHECK(logits({{"down_proj|self_attn\\.v_proj", 50}}) == both);
  CHECK(logits({{"v_proj", 50}}) != both);
  CHECK(logits({{"down_proj", 50}}) != both);
}

TEST_CASE("settings of the training change no logit, whatever their values are") {
  const Tokens text{5, 9, 200, 7};
  Model model = load("llama-3");
  Copy adapter;
  const auto logits = [&] {
    model.load_adapters({&adapter.path, 1});
    model.use_adapters({0});
    return copied(model.next_logits(text));
  };
  const Floats want = logits();
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, json>>{{"auto_mapping", {{"base_model_class", "A"}}},
                                                 {"base_model_name_or_path", "other/name"},
                                                 {"corda_config", {{"cache_file", "x"}}},
                                                 {"ensure_weight_tying", true},
                                                 {"eva_config", {{"rho", 2.0}}},
                                                 {"inference_mode", false},
                                                 {"lora_dropout", 0.1},
                                                 {"lora_ga_config", {{"direction", "x"}}},
                                                 {"loftq_config", {{"loftq_bits", 4}}},
                                                 {"megatron_core", "other"},
                                                 {"peft_version", "9.9"},
                                                 {"qalora_group_size", 32},
                                                 {"revision", "main"},
                                                 {"fan_in_fan_out", true},
                                                 {"runtime_config", {{"ephemeral_gpu_offload", true}}},
                                                 {"init_lora_weights", true},
                                                 {"init_lora_weights", "gaussian"},
                                                 {"init_lora_weights", "orthogonal"},
                                                 {"init_lora_weights", "eva"}}) {
    const char* const name = key;  // clang 14 captures no structured binding
    CAPTURE(name);
    adapter.with(key, value);
    CHECK(logits() == want);
  }
}

TEST_CASE("layers and modules are left out by name, by pattern and by number") {
  const Tokens text{5, 9, 200, 7};
  Model model = load("llama-3");
  const fs::path whole = adapter_of("llama-3");
  model.load_adapters({&whole, 1});
  model.use_adapters({0});
  const Floats all = copied(model.next_logits(text));
  Copy adapter;
  // The tensors of what is left out are no tensors of a target.
  const auto refused = [&](const json& changes) {
    json changed = adapter.config;
    changed.update(changes);
    adapter.folder.write("adapter/adapter_config.json", changed.dump());
    return refusal("llama-3", adapter.path);
  };
  const std::string lacks = "is not lora_A or lora_B of a product that";
  const json targets = adapter.config.at("target_modules");
  CHECK(says(refused({{"exclude_modules", {"k_proj"}}}), "k_proj", lacks));
  CHECK(says(refused({{"exclude_modules", R"(.*\.k_proj)"}}), "k_proj", lacks));
  for (const char* part : {"k_proj", R"(.*\.k)"}) {
    CHECK(refused({{"exclude_modules", part}}) == "");  // as a pattern, it is no whole name
  }
  CHECK(says(refused({{"layers_to_transform", 0}}), "layers.1.", lacks));
  CHECK(says(refused({{"layers_to_transform", {1}}, {"layers_pattern", "layers"}}), "layers.0.", lacks));
  CHECK(
      says(refused({{"layers_to_transform", {1}}, {"layers_pattern", {"h", "layers"}}}), "layers.0.", lacks));
  CHECK(says(refused({{"layers_to_transform", {1}}, {"layers_pattern", {"h", "blocks"}}}),
             "layers_to_transform names layer 1, which the model lacks"));
  CHECK(says(refused({{"layers_to_transform", {0}}, {"target_modules", "all-linear"}}),
             "layers_to_transform needs a list of target_modules"));
  CHECK(says(refused({{"target_modules", {"q_proj", "c_attn"}}}),
             "its products are down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"));
  model.load_adapters({&adapter.with("layers_to_transform", {0, 1, 2}), 1});
  model.use_adapters({0});
  CHECK(copied(model.next_logits(text)) == all);
}

TEST_CASE("a setting that changes the result and is not supported is refused by name") {
  Copy adapter;
  for (const auto& one :
       std::vector<std::pair<const char*, json>>{{"use_dora", true},
                                                 {"bias", "all"},
                                                 {"modules_to_save", {"lm_head"}},
                                                 {"lora_bias", true},
                                                 {"trainable_token_indices", {1, 2}},
                                                 {"init_lora_weights", "pissa"},
                                                 {"peft_type", "IA3"},
                                                 {"task_type", "SEQ_CLS"},
                                                 {"target_parameters", {"mlp.experts.gate_up_proj"}},
                                                 {"layer_replication", {{0, 1}}},
                                                 {"use_qalora", true},
                                                 {"alora_invocation_tokens", {1}},
                                                 {"something_new", 3},
                                                 {"r", 0},
                                                 {"r", -1},
                                                 {"r", "eight"},
                                                 {"r", 3.5},
                                                 {"lora_alpha", "much"},
                                                 {"lora_alpha", nullptr},
                                                 {"target_modules", nullptr},
                                                 {"target_modules", json::array()},
                                                 {"target_modules", 3},
                                                 {"target_modules", {1}},
                                                 {"rank_pattern", {{"q_proj", 0}}},
                                                 {"rank_pattern", {{"(q_proj", 1}}},
                                                 {"alpha_pattern", {{"q_proj", "x"}}},
                                                 {"alpha_pattern", 4},
                                                 {"use_rslora", "yes"},
                                                 {"layers_to_transform", "all"}}) {
    const char* const key = one.first;
    const json& value = one.second;
    CAPTURE(key);
    CAPTURE(value);
    CHECK(says(refusal("llama-3", adapter.with(key, value)), "adapter_config.json", key));
  }
  CHECK(says(refusal("llama-3", adapter.with("layers_to_transform", {0, 7})),
             "layers_to_transform names layer 7, which the model lacks"));
  CHECK(says(
      refusal("llama-3", adapter.with("target_modules", {"q_proj", "c_attn"})),
      R"(target_modules names "c_attn", but the model has no such product; its products are down_proj, gate)"));
  CHECK(says(refusal("llama-3", adapter.with("target_modules", "[")), "the pattern \"[\" is refused",
             " at byte 1"));
  CHECK(says(refusal("llama-3", adapter.with("target_modules", "(a*)*b")), "no product of the model"));
  CHECK(says(refusal("llama-3", adapter.with("target_modules", {"q_proj"})), "tensor \"base_model.model",
             "is not lora_A or lora_B of a product that"));
}

TEST_CASE("an adapter of another model, and a broken file, are refused in one sentence") {
  CHECK(says(refusal("gpt2", adapter_of("llama-3")), "target_modules names"));
  CHECK(says(refusal("smollm2", adapter_of("qwen2")), "has shape [2, 64]", "it must be [2, 72]"));
  CHECK(says(refusal("llama-3", "/nowhere"), "/nowhere"));
  Copy adapter;
  CHECK(says(refusal("llama-3", adapter.with("r", 5)), "has shape [3, 64]", "it must be [5, 64]"));
  adapter.with("r", 3);
  CHECK(says(refusal("llama-3", adapter.with_tensors([](json& header, std::string&) {
               const std::string name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
               header["base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight"] = header.at(name);
               header.erase(name);
             })),
             "has no tensor", "layers.0.self_attn.q_proj.lora_A.weight"));
  CHECK(says(refusal("llama-3", adapter.with_tensors([](json&, std::string& bytes) {
               const float infinity = std::numeric_limits<float>::infinity();
               std::memcpy(bytes.data() + 4, &infinity, sizeof infinity);
             })),
             "has a non-finite value"));
  CHECK(says(refusal("llama-3", adapter.with_tensors([](json& header, std::string&) {
               for (auto& tensor : header) {
                 if (tensor.contains("dtype")) tensor["dtype"] = "I32";
               }
             })),
             "is stored as I32; F32, F16 and BF16 can be read"));
  CHECK(says(refusal("llama-3", adapter.with_tensors([](json&, std::string& bytes) { bytes.resize(99); })),
             "adapter_model.safetensors"));
  adapter.folder.write("adapter/adapter_config.json", "[1, 2");
  CHECK(says(refusal("llama-3", adapter.path), "adapter_config.json"));
  fs::remove(adapter.path / "adapter_model.safetensors");
  adapter.with("r", 3);
  CHECK(says(refusal("llama-3", adapter.path), "adapter_model.safetensors"));
  adapter.folder.write("adapter/adapter_model.bin", "x");
  CHECK(says(refusal("llama-3", adapter.path), "only adapter_model.safetensors can be read"));
}

TEST_CASE("adapters that are loaded later replace all before them, also in products that they leave alone") {
  const Tokens text{5, 9, 200, 7};
  const fs::path whole = adapter_of("llama-3");
  Copy of_queries;
  of_queries.with("target_modules", {"q_proj"});
  const fs::path less = of_queries.with_tensors([](json& header, std::string& bytes) {
    json kept;
    std::string packed;
    for (const auto& [name, tensor] : header.items()) {
      if (name.find("q_proj") == std::string::npos) continue;
      const std::size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1],
                        at = packed.size();
      kept[name] = tensor;
      kept[name]["data_offsets"] = {at, at + end - begin};
      packed += bytes.substr(begin, end - begin);
    }
    header = kept;
    bytes = packed;
  });
  Model fresh = load("llama-3"), used = load("llama-3");
  const Floats alone = copied(used.next_logits(text));
  const auto adapted = [&](Model& model, const fs::path& folder) {
    model.load_adapters({&folder, 1});
    model.use_adapters({0});
    return copied(model.next_logits(text));
  };
  const Floats queries = adapted(fresh, less);
  CHECK(queries != alone);
  CHECK(adapted(used, whole) != queries);
  CHECK(adapted(used, less) == queries);
  CHECK(used.weight_bytes() == fresh.weight_bytes());
  used.load_adapters({});
  CHECK(copied(used.next_logits(text)) == alone);
}

TEST_CASE("a refused adapter leaves the model as it was, and so does an index of no adapter") {
  Model model = load("llama-3");
  const fs::path folder = adapter_of("llama-3");
  model.load_adapters({&folder, 1});
  model.use_adapters({0});
  const std::size_t bytes = model.weight_bytes();
  CHECK(bytes > load("llama-3").weight_bytes());
  const Tokens text{5, 9, 200};
  const Floats before = copied(model.next_logits(text));
  const std::vector<fs::path> second{folder, "/nowhere"};
  CHECK(says(error_message([&] { model.load_adapters(second); }), "/nowhere"));
  CHECK(says(error_message([&] { model.use_adapters({0, 1}); }), "adapter 1 is not among the 1"));
  CHECK(copied(model.next_logits(text)) == before);
  CHECK(model.weight_bytes() == bytes);
}

}  // namespace
}  // namespace staircase
