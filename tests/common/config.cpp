// config.json: the embedded models' values, the defaults, and one sentence for everything that cannot be.
#include "common/model/config.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/model/family.h"
#include "common/model/generation_config.h"
#include "common/program/chat_defaults.h"
#include "tests/captured.h"
#include "tests/error_message.h"
#include "tests/temporary_folder.h"

using namespace staircase;
using nlohmann::json;

namespace {

const std::filesystem::path kModels = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "models";

json valid() {
  return {{"model_type", "gpt2"}, {"activation_function", "gelu_new"},
          {"vocab_size", 100},    {"n_positions", 32},
          {"n_embd", 48},         {"n_layer", 2},
          {"n_head", 4},          {"layer_norm_epsilon", 1e-6},
          {"eos_token_id", 7}};
}

ModelConfig read(const std::string& text) {
  const TemporaryFolder folder;
  folder.write("config.json", text);
  return read_config(folder.path());
}

/// The error for the valid settings with one of them changed.
std::string error_with(const std::string& name, const json& value) {
  json settings = valid();
  settings[name] = value;
  return error_message([&] { read(settings.dump()); });
}

}  // namespace

TEST_CASE("the embedded models have the shapes that their pages state") {
  const ModelConfig target = read_config(kModels / "tales-6m");
  CHECK(target.vocab_size == 4096);
  CHECK(target.n_positions == 512);
  CHECK(target.n_embd == 256);
  CHECK(target.n_layer == 6);
  CHECK(target.n_head == 4);
  CHECK(target.n_inner == 1024);
  CHECK(target.norm_epsilon == 1e-5f);
  CHECK(target.eos_token_id == 4095);
  CHECK(target.head_size == 64);
  const ModelConfig draft = read_config(kModels / "tales-1m");
  CHECK(draft.n_embd == 128);
  CHECK(draft.n_layer == 2);
  CHECK(draft.n_head == 2);
}

TEST_CASE("the config holds the values of the file") {
  json settings = valid();
  settings["n_inner"] = 100;
  const ModelConfig config = read(settings.dump());
  CHECK(config.vocab_size == 100);
  CHECK(config.n_positions == 32);
  CHECK(config.n_embd == 48);
  CHECK(config.n_layer == 2);
  CHECK(config.n_head == 4);
  CHECK(config.n_inner == 100);
  CHECK(config.norm_epsilon == 1e-6f);
  CHECK(config.eos_token_id == 7);
}

TEST_CASE("the end of text is the file's, otherwise that of vocab.json, and null is none") {
  const TemporaryFolder folder;
  const auto end_of_text = [&](const json& settings) {
    folder.write("config.json", settings.dump());
    return read_config(folder.path()).eos_token_id;
  };
  json named = valid(), missing = valid(), none = valid();
  missing.erase("eos_token_id");
  none["eos_token_id"] = nullptr;
  CHECK(end_of_text(missing) == -1);
  folder.write("vocab.json",
               R"({"a": 0, "<|endoftext|>": 50, "b": 51})");  // the vocabulary was padded to 100
  CHECK(end_of_text(named) == 7);
  CHECK(read_config(folder.path()).end_tokens == EndTokens{7});
  CHECK(end_of_text(missing) == 50);
  CHECK(end_of_text(none) == -1);
  for (const int id : {0, 99}) {
    folder.write("vocab.json", json{{"<|endoftext|>", id}}.dump());
    CHECK(end_of_text(missing) == id);
  }
  for (const char* vocabulary :
       {R"({"a": 0, "</s>": 50})", R"({"<|endoftext|>": 100})", R"({"<|endoftext|>": "x"})"}) {
    folder.write("vocab.json", vocabulary);
    CHECK(end_of_text(missing) == -1);
    CHECK(read_config(folder.path()).end_tokens.empty());
  }
}

TEST_CASE("missing settings have GPT-2's defaults") {
  json settings = valid();
  for (const char* name : {"model_type", "activation_function", "layer_norm_epsilon", "eos_token_id"}) {
    settings.erase(name);
  }
  const ModelConfig config = read(settings.dump());
  CHECK(config.n_inner == 4 * 48);
  CHECK(config.norm_epsilon == 1e-5f);
  CHECK(config.eos_token_id == -1);  // no vocabulary names it
  settings["n_inner"] = nullptr;
  CHECK(read(settings.dump()).n_inner == 4 * 48);
}

TEST_CASE("a value of another type is shown in short, and a fault in one line of JSON has a byte alone") {
  CHECK(says(error_with("model_type", 3), "config.json: model_type is 3, not a text"));
  CHECK(says(error_with("model_type", json::object()), "model_type is an object, not a text"));
  CHECK(says(error_with("model_type", json::array()), "model_type is an array, not a text"));
  const std::string error = error_with("n_layer", std::string(1000, 'x'));
  CHECK(says(error, "n_layer is \"xxx", "...", "not an integer"));
  CHECK(error.size() < 300);
  CHECK(says(error_message([] { read("{\"a\": }"); }), "the parser stops at byte "));
  CHECK(says(error_message([] { read("{\n\"a\": }"); }), "the parser stops in line 2, at byte "));
}

TEST_CASE("settings that change nothing in the computation are accepted") {
  CHECK(error_with("activation_function", "gelu_pytorch_tanh") == "");
  CHECK(error_with("reorder_and_upcast_attn", true) == "");
  CHECK(error_with("scale_attn_weights", true) == "");
  CHECK(error_with("scale_attn_by_inverse_layer_idx", false) == "");
  CHECK(error_with("tie_word_embeddings", true) == "");
  CHECK(error_with("tie_word_embeddings", false) == "");
  CHECK(error_with("add_cross_attention", true) == "");
  CHECK(error_with("quantization_config", json()) == "");
  CHECK(error_with("task_specific_params", json::parse(R"({"text-generation": {"do_sample": true}})")) == "");
}

TEST_CASE("settings that would compute something else are rejected by name") {
  CHECK(says(error_with("model_type", "gpt_neo"), "config.json", "model_type", "\"gpt_neo\"",
             "gpt2, gpt_neox, olmo, llama"));
  CHECK(says(error_with("activation_function", "relu"), "config.json", "activation_function", "\"relu\"",
             "only \"gelu_new\" or \"gelu_pytorch_tanh\" is supported"));
  CHECK(says(error_with("activation_function", "gelu"), "config.json", "\"gelu\""));
  CHECK(says(error_with("scale_attn_weights", false), "config.json", "scale_attn_weights is false", "true"));
  CHECK(says(error_with("scale_attn_by_inverse_layer_idx", true), "config.json",
             "scale_attn_by_inverse_layer_idx is true", "false"));
  CHECK(says(error_with("quantization_config", json{{"bits", 4}}), "config.json", "quantization_config",
             "not quantized"));
  CHECK(says(error_with("tie_word_embeddings", "no"), "config.json", "tie_word_embeddings is \"no\"",
             "true or false"));
}

TEST_CASE("attention that sees what comes later is refused in every family") {
  CHECK(says(error_with("is_causal", false), "config.json", "is_causal is false", "true"));
  CHECK(error_with("is_causal", true) == "");
}

TEST_CASE("sizes are integers of a possible size") {
  for (const char* name : {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner"}) {
    CAPTURE(name);
    const std::vector<json> impossible = {0,
                                          -1,
                                          1.5,
                                          1e3,
                                          "12",
                                          true,
                                          json::array({1}),
                                          {{"a", 1}},
                                          (1 << 24) + 1,
                                          4294967295u,
                                          9223372036854775807,
                                          18446744073709551615u,
                                          -9223372036854775807};
    for (const json& value : impossible) {
      CAPTURE(value.dump());
      CHECK(says(error_with(name, value), "config.json", name, "not an integer from 1 to 16777216"));
    }
  }
  CHECK(says(error_with("n_embd", 18446744073709551615u), "n_embd is 18446744073709551615"));
  for (const char* name : {"vocab_size", "n_positions", "n_embd", "n_layer", "n_head"}) {
    CAPTURE(name);
    CHECK(says(error_with(name, nullptr), "config.json", name));
    json settings = valid();
    settings.erase(name);
    CHECK(says(error_message([&] { read(settings.dump()); }), "config.json has no ", name));
  }
}

TEST_CASE("sizes that fit one by one may still be too large together") {
  json settings = valid();
  settings["n_embd"] = 1 << 14;
  settings["n_head"] = 16;
  CHECK(error_message([&] { read(settings.dump()); }) == "");
  settings["vocab_size"] = 1 << 17;
  CHECK(says(error_message([&] { read(settings.dump()); }), "config.json", "vocab_size", "131072", "16384"));
  settings["vocab_size"] = (1 << 17) - 1;
  CHECK(error_message([&] { read(settings.dump()); }) == "");
  settings["n_positions"] = 1 << 17;
  CHECK(says(error_message([&] { read(settings.dump()); }), "config.json", "n_positions"));
  settings["n_positions"] = 8;
  settings["n_inner"] = 1 << 17;
  CHECK(says(error_message([&] { read(settings.dump()); }), "config.json", "n_inner"));
  settings["n_embd"] = 1 << 15;
  settings["vocab_size"] = 8;
  settings["n_inner"] = 8;
  CHECK(says(error_message([&] { read(settings.dump()); }), "config.json", "queries, keys and values"));
}

TEST_CASE("the heads divide the width") {
  CHECK(says(error_with("n_head", 5), "config.json", "n_embd is 48", "n_head", "5"));
  CHECK(error_with("n_head", 48) == "");
  CHECK(says(error_with("n_head", 96), "config.json", "n_head"));
}

TEST_CASE("the end-of-text token is in the vocabulary") {
  CHECK(error_with("eos_token_id", 0) == "");
  CHECK(error_with("eos_token_id", 99) == "");
  for (const json& value : {json(100), json(-1), json("7"), json::array({7, 100})}) {
    CHECK(says(error_with("eos_token_id", value), "config.json", "eos_token_id", "from 0 to 99"));
  }
}

TEST_CASE("the layer norm's epsilon is a number above 0") {
  for (const json& value :
       {json(0), json(0.0), json(-1e-5), json("1e-5"), json(true), json(1e-60), json(1e60)}) {
    CAPTURE(value.dump());
    CHECK(says(error_with("layer_norm_epsilon", value), "config.json", "layer_norm_epsilon", "above 0"));
  }
  CHECK(error_with("layer_norm_epsilon", 1) == "");
}

TEST_CASE("a file that is not a JSON object is an error with the place where parsing stops") {
  const auto error = [](const std::string& text) { return error_message([&] { read(text); }); };
  CHECK(says(error(""), "config.json", "not valid JSON"));
  CHECK(says(error("{\n\"n_embd\": 3,\n oops\n}"), "config.json", "line 3"));
  CHECK(says(error("{} {}"), "config.json", "not valid JSON"));
  CHECK(says(error(std::string("{}\0{}", 5)), "config.json", "byte 2 is zero"));
  CHECK(says(error("[1, 2]"), "config.json", "an array"));
  CHECK(says(error("12"), "config.json", "12"));
  CHECK(says(error(R"({"n_embd": 48, "n_embd": 64})"), "config.json", "\"n_embd\" twice"));
  CHECK(says(error(R"({"n_embd": "\xff"})"), "config.json", "not valid JSON"));
  CHECK(says(error("{\"n_embd\": \"\xff\"}"), "config.json", "not valid JSON"));
  CHECK(says(error(R"({"n_embd": 1e999})"), "config.json", "not valid JSON"));
  CHECK(says(error("{\"a\": " + std::string(1'000'000, '[')), "config.json", "deep"));
  std::string deep = "{\"a\": ";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\": ";
  CHECK(says(error(deep), "config.json", "deep"));
  const auto nested = [&](std::size_t lists) {
    json settings = valid();
    settings["a"] = json::parse(std::string(lists, '[') + std::string(lists, ']'));
    return error(settings.dump());
  };
  CHECK(nested(31) == "");  // 32 with the object around them
  CHECK(says(nested(32), "config.json", "more than 32 deep"));
}

TEST_CASE("a model's folder without a readable config.json is an error with its path") {
  const TemporaryFolder folder;
  const auto error = [&](const std::filesystem::path& path) {
    return error_message([&] { read_config(path); });
  };
  CHECK(says(error(folder.path()), folder.path().string(), "config.json does not exist"));
  CHECK(says(error(folder.path() / "nowhere"), "nowhere", "does not exist"));
  std::filesystem::create_directory(folder.path() / "config.json");
  CHECK(says(error(folder.path()), "config.json is a folder"));
}

namespace {

/// A configuration that its family takes, in the spelling of published folders.
json valid_of(const std::string& family) {
  json settings{{"model_type", family},    {"vocab_size", 100},      {"max_position_embeddings", 64},
                {"hidden_size", 48},       {"num_hidden_layers", 2}, {"num_attention_heads", 6},
                {"intermediate_size", 80}, {"rope_theta", 5000.0},   {"eos_token_id", 7}};
  if (family != "olmo" && family != "gpt_neox") settings["num_key_value_heads"] = 2;
  settings["hidden_act"] = family == "gpt_neox" ? "gelu" : "silu";
  if (family == "gpt_neox") {
    settings.erase("rope_theta");
    settings["rotary_emb_base"] = 5000.0;
  }
  if (family == "qwen3" || family == "gemma3_text") settings["head_dim"] = 16;
  if (family == "mixtral" || family == "olmoe" || family == "qwen3_moe")
    settings.update({{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 80}});
  if (family == "gemma3_text") {
    settings.erase("hidden_act");
    settings.update({{"hidden_activation", "gelu_pytorch_tanh"},
                     {"tie_word_embeddings", false},
                     {"sliding_window", 20},
                     {"sliding_window_pattern", 2}});
  }
  return settings;
}

std::string error_of(const std::string& family, const std::string& name, const json& value) {
  json settings = valid_of(family);
  settings[name] = value;
  return error_message([&] { read(settings.dump()); });
}

const std::vector<std::string> kMixtures{"mixtral", "olmoe", "qwen3_moe"};
const std::vector<std::string> kLlamas{"llama", "mistral", "qwen2", "qwen3",
                                       "olmo",  "mixtral", "olmoe", "qwen3_moe"};

}  // namespace

TEST_CASE("each family states its sizes in its own words") {
  for (const std::string family : {"gpt_neox", "llama", "mistral", "qwen2", "qwen3", "olmo", "gemma3_text",
                                   "mixtral", "olmoe", "qwen3_moe"}) {
    CAPTURE(family);
    const ModelConfig config = read(valid_of(family).dump());
    CHECK(config.family == family);
    CHECK(config.n_positions == 64);
    CHECK(config.n_embd == 48);
    CHECK(config.n_head == 6);
    CHECK(config.n_inner == 80);
    CHECK(config.n_kv_head == (family == "olmo" || family == "gpt_neox" ? 6 : 2));
    const bool states = family == "qwen3" || family == "gemma3_text";
    CHECK(config.head_size == (states ? 16 : 8));
    CHECK(config.rotary_size == (states ? 16 : family == "gpt_neox" ? 2 : 8));
    CHECK(!config.tie_word_embeddings);
    CHECK(config.end_tokens == EndTokens{7});
  }
}

TEST_CASE("each family refuses each of its sizes below 1 and above the largest") {
  for (const std::string family : {"gpt_neox", "llama", "mistral", "qwen2", "qwen3", "olmo", "gemma3_text",
                                   "mixtral", "olmoe", "qwen3_moe"}) {
    for (const char* name : {"vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers",
                             "num_attention_heads", "intermediate_size"}) {
      CAPTURE(family);
      CAPTURE(name);
      for (const int value : {0, (1 << 24) + 1}) {
        CHECK(says(error_of(family, name, value), name, "not an integer from 1 to 16777216"));
      }
    }
  }
}

TEST_CASE("a folder without model_type is an old one of GPT-2, and any other needs it") {
  json settings = valid_of("llama");
  settings.erase("model_type");
  CHECK(
      says(error_message([&] { read(settings.dump()); }), "config.json has no model_type", "gpt2", "qwen3"));
}

TEST_CASE("the two matrices of a gated MLP count as one, which may have 2^31 - 1 values") {
  json gated = valid_of("llama");
  gated.update({{"hidden_size", 1 << 14}, {"num_attention_heads", 16}, {"intermediate_size", 1 << 16}});
  CHECK(says(error_message([&] { read(gated.dump()); }), "config.json", "n_inner"));
  gated["intermediate_size"] = (1 << 16) - 1;
  CHECK(error_message([&] { read(gated.dump()); }) == "");
  const auto error = [](std::int64_t columns) {
    return error_message([&] { check_matrix(Settings("f", json::object()), "a matrix", 1, columns); });
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  CHECK(error(kMost) == "");
  CHECK(says(error(kMost + 1), "f: a matrix is 1 x 2147483648, more than the 2^31 - 1 values"));
}

TEST_CASE("queries, keys and values count as one matrix, each head of keys and of values once") {
  json grouped = valid_of("mistral");
  grouped.update({{"hidden_size", 1 << 14}, {"head_dim", 64}});
  grouped.update({{"num_attention_heads", 1024}, {"num_key_value_heads", 512}});
  CHECK(says(error_message([&] { read(grouped.dump()); }), "queries, keys and values", "16384 x 131072"));
  grouped.update({{"num_attention_heads", 1022}, {"num_key_value_heads", 511}});
  CHECK(error_message([&] { read(grouped.dump()); }) == "");
}

TEST_CASE("heads whose size is not a quotient of the width have the size in the file") {
  json settings = valid_of("mistral");
  settings["head_dim"] = 20;
  CHECK(read(settings.dump()).query_width() == 120);
  settings["head_dim"] = nullptr;
  CHECK(read(settings.dump()).head_size == 8);
  json qwen3 = valid_of("qwen3");
  qwen3.erase("head_dim");
  CHECK(read(qwen3.dump()).head_size == 128);
}

TEST_CASE("settings of other families that would compute something else are refused by name") {
  for (const std::string& family : kLlamas) {
    CAPTURE(family);
    CHECK(says(error_of(family, "hidden_act", "gelu"), "config.json", "hidden_act is \"gelu\"", "silu"));
    CHECK(says(error_of(family, "attention_bias", true), "attention_bias is true", "false"));
    CHECK(says(error_of(family, "mlp_bias", true), "mlp_bias is true"));
    CHECK(says(error_of(family, "pretraining_tp", 2), "pretraining_tp is 2"));
    CHECK(says(error_of(family, "is_causal", false), "is_causal is false"));
    CHECK(says(error_of(family, "quantization_config", json{{"bits", 4}}), "quantization_config"));
    CHECK(says(error_of(family, "partial_rotary_factor", 0.5), "of the", "features", "all of them must"));
    CHECK(error_of(family, "partial_rotary_factor", 1.0) == "");
    for (const char* place : {"rope_scaling", "rope_parameters"}) {
      for (const char* key : {"type", "rope_type"}) {
        const json scaling{{key, "longrope"}, {"factor", 2.0}, {"rope_theta", 1e4}};
        CHECK(says(error_of(family, place, scaling), "config.json", "longrope", "linear, llama3 and yarn"));
      }
    }
  }
  CHECK(says(error_of("olmo", "clip_qkv", 8.0), "clip_qkv is 8", "null"));
  CHECK(says(error_of("gpt_neox", "hidden_act", "relu"), "hidden_act is \"relu\"", "gelu"));
  for (const char* gelu : {"gelu", "gelu_new", "gelu_pytorch_tanh"})
    CHECK(error_of("gpt_neox", "hidden_act", gelu) == "");
  CHECK(says(error_of("gpt_neox", "attention_bias", false), "attention_bias is false"));
}

TEST_CASE("impossible sizes of other families are refused with key and value") {
  for (const std::string& family : kLlamas) {
    CAPTURE(family);
    CHECK(says(error_of(family, "num_key_value_heads", 4), "num_attention_heads is 6",
               "num_key_value_heads, which is 4"));
    CHECK(says(error_of(family, "num_key_value_heads", 0), "num_key_value_heads is 0"));
    CHECK(says(error_of(family, "head_dim", 0), "head_dim is 0"));
    CHECK(says(error_of(family, "head_dim", 7), "7 of the 7 features", "even"));
    CHECK(says(error_of(family, "rope_theta", 0), "rope_theta is 0", "above 0"));
    CHECK(says(error_of(family, "rms_norm_eps", -1), "rms_norm_eps is -1", "above 0"));
    const json scaling{{"rope_type", "llama3"}, {"factor", -8.0}};
    CHECK(says(error_of(family, "rope_scaling", scaling), "rope_scaling.factor is -8", "above 0"));
    CHECK(says(error_of(family, "rope_scaling", 3), "rope_scaling is 3", "object"));
  }
  CHECK(says(error_of("gpt_neox", "num_attention_heads", 5), "hidden_size is 48", "which is 5"));
  CHECK(says(error_of("gpt_neox", "rotary_pct", 0.4), "3 of the 8 features", "even"));
  CHECK(says(error_of("gpt_neox", "rotary_pct", 1.5), "12 of the 8 features"));
}

TEST_CASE("a window counts where it is in use, layer by layer") {
  using Windows = std::vector<std::int32_t>;
  const auto windows = [](const std::string& family, const json& more) {
    json settings = valid_of(family);
    settings.update(more);
    const ModelConfig config = read(settings.dump());
    CHECK(config.n_positions == 64);
    for (int layer = 0; layer < config.n_layer; ++layer) {
      const auto l = static_cast<std::size_t>(layer);
      CHECK(config.window(layer) == (config.windows.empty() ? kNoWindow : config.windows[l]));
    }
    return config.windows;
  };
  CHECK(windows("mistral", json::object()) == Windows{});
  CHECK(windows("mistral", {{"sliding_window", 20}}) == Windows{20, 20});
  CHECK(windows("mistral", {{"sliding_window", 63}}) == Windows{63, 63});
  CHECK(windows("mistral", {{"sliding_window", 64}}) == Windows{});
  CHECK(windows("mistral", {{"sliding_window", nullptr}}) == Windows{});
  CHECK(windows("qwen2", {{"sliding_window", 20}}) == Windows{});
  CHECK(windows("qwen2", {{"sliding_window", 20}, {"use_sliding_window", false}}) == Windows{});
  json slides{{"sliding_window", 20}, {"use_sliding_window", true}, {"max_window_layers", 0}};
  for (const std::string qwen : {"qwen2", "qwen3"}) {
    for (const auto& [first, want] : {std::pair{0, Windows{20, 20}}, {1, Windows{kNoWindow, 20}}, {2, {}}}) {
      slides["max_window_layers"] = first;
      CHECK(windows(qwen, slides) == want);
    }
  }
  const json full{"full_attention", "full_attention"}, last{"full_attention", "sliding_attention"},
      first{"sliding_attention", "full_attention"};
  CHECK(windows("qwen3", {{"sliding_window", 20}, {"use_sliding_window", true}, {"layer_types", full}}) ==
        Windows{});
  for (const std::string qwen : {"qwen2", "qwen3"}) {
    json listed{{"sliding_window", 20}, {"use_sliding_window", true}, {"layer_types", last}};
    CHECK(windows(qwen, listed) == Windows{kNoWindow, 20});
    listed["layer_types"] = first;
    CHECK(windows(qwen, listed) == Windows{20, kNoWindow});
  }
  CHECK(windows("mistral", {{"sliding_window", 20}, {"layer_types", full}}) == Windows{20, 20});
}

TEST_CASE("Qwen's list of windows needs its switch and a width, as in transformers") {
  const json first{"sliding_attention", "full_attention"}, full{"full_attention", "full_attention"};
  for (const std::string qwen : {"qwen2", "qwen3"}) {
    for (const json& more : {json::object(), json{{"sliding_window", 20}},
                             json{{"sliding_window", 20}, {"use_sliding_window", false}},
                             json{{"sliding_window", nullptr}, {"use_sliding_window", true}}}) {
      json settings = valid_of(qwen);
      settings.update(more);
      settings["layer_types"] = first;
      CAPTURE(settings.dump());
      CHECK(says(error_message([&] { read(settings.dump()); }), "layer_types", "use_sliding_window"));
      settings["layer_types"] = full;
      CHECK(read(settings.dump()).windows.empty());
    }
  }
}

TEST_CASE("YaRN stretches the context by its factor, other rotations leave it") {
  for (const std::string family : {"gpt_neox", "llama", "mistral", "qwen2", "qwen3", "olmo"}) {
    const auto positions = [&](json scaling) {
      json settings = valid_of(family);
      scaling["factor"] = 4.0;
      settings["rope_scaling"] = scaling;
      return read(settings.dump()).n_positions;
    };
    CAPTURE(family);
    CHECK(positions({{"rope_type", "linear"}}) == 64);
    CHECK(positions({{"rope_type", "yarn"}, {"original_max_position_embeddings", 16}}) == 64);
    CHECK(positions({{"rope_type", "yarn"}, {"original_max_position_embeddings", 48}}) == 192);
    CHECK(positions({{"rope_type", "yarn"}}) == 256);
  }
}

TEST_CASE("Gemma's windows are those of all layers but each sixth, or of the layers that its settings name") {
  using Windows = std::vector<std::int32_t>;
  constexpr std::int32_t kAll = kNoWindow;
  const auto windows = [](const json& more, int layers = 3) {
    json settings = valid_of("gemma3_text");
    settings["num_hidden_layers"] = layers;
    settings.update(more);
    return read(settings.dump()).windows;
  };
  CHECK(windows(json::object()) == Windows{20, kAll, 20});
  CHECK(windows({{"sliding_window_pattern", nullptr}}, 7) == Windows{20, 20, 20, 20, 20, kAll, 20});
  CHECK(windows({{"sliding_window_pattern", 1}}) == Windows{});
  CHECK(windows({{"sliding_window_pattern", 1}, {"sliding_window", nullptr}}) == Windows{});
  CHECK(windows({{"sliding_window_pattern", 1 << 24}}) == Windows{20, 20, 20});
  const json listed{"full_attention", "sliding_attention", "sliding_attention"};
  CHECK(windows({{"layer_types", listed}}) == Windows{kAll, 20, 20});
  // Such layers rotate faster even where all of a text is in their window.
  CHECK(windows({{"sliding_window", 64}}) == Windows{64, kAll, 64});
  json unstated = valid_of("gemma3_text");
  unstated.erase("sliding_window");
  CHECK(read(unstated.dump()).windows == Windows{4096, kAll});
  for (const json& pattern : {json(0), json(-1), json(1.5), json("six"), json((1 << 24) + 1)}) {
    CHECK(says(error_of("gemma3_text", "sliding_window_pattern", pattern), "sliding_window_pattern is ",
               "not an integer from 1"));
  }
  CHECK(says(error_of("gemma3_text", "sliding_window", nullptr), "sliding_window is null", "need its size"));
  for (const json& window : {json(0), json(-1), json(2.5), json("wide")})
    CHECK(says(error_of("gemma3_text", "sliding_window", window), "sliding_window is ", "from 1"));
  CHECK(says(error_of("gemma3_text", "layer_types", listed), "layer_types", "not a list of 2 types"));
}

TEST_CASE("settings of Gemma that would compute something else are refused by name") {
  const std::string gemma = "gemma3_text";
  CHECK(error_message([&] { read(valid_of(gemma).dump()); }) == "");
  for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    CHECK(says(error_of(gemma, name, 30.0), std::string(name) + " is 30", "null"));
    CHECK(error_of(gemma, name, nullptr) == "");
  }
  CHECK(says(error_of(gemma, "use_bidirectional_attention", true), "use_bidirectional_attention is true"));
  CHECK(says(error_of(gemma, "attention_bias", true), "attention_bias is true", "false"));
  CHECK(says(error_of(gemma, "hidden_activation", "silu"), "hidden_activation is \"silu\"",
             "gelu_pytorch_tanh"));
  CHECK(says(error_of(gemma, "hidden_act", "silu"), "hidden_act is \"silu\"", "gelu_pytorch_tanh"));
  CHECK(says(error_of(gemma, "is_causal", false), "is_causal is false"));
  for (const json& scalar : {json(0), json(-256), json("wide")})
    CHECK(says(error_of(gemma, "query_pre_attn_scalar", scalar), "query_pre_attn_scalar is ", "above 0"));
  for (const char* name : {"rope_theta", "rope_local_base_freq"})
    CHECK(says(error_of(gemma, name, 0), std::string(name) + " is 0", "above 0"));
  CHECK(says(error_of(gemma, "partial_rotary_factor", 0.5), "8 of the 16 features", "all of them must"));
  // A rotation for all layers is of another family; transformers would not read it.
  CHECK(says(error_of(gemma, "rope_parameters", json{{"rope_type", "default"}, {"rope_theta", 5000.0}}),
             "rope_parameters is ", "not a dictionary for each type of layers"));
  CHECK(says(error_of(gemma, "rope_scaling", json{{"rope_type", "longrope"}, {"factor", 2.0}}), "longrope"));
  for (const char* layers : {"full_attention", "sliding_attention"}) {
    const auto with = [&](const json& rotation) {
      return error_of(gemma, "rope_parameters", json{{layers, rotation}});
    };
    CHECK(with({{"rope_type", "default"}, {"rope_theta", 5000.0}}) == "");
    CHECK(says(
        with({{"rope_type", "dynamic"}, {"factor", 2.0}}),
        "config.json: the rotary positions are of type dynamic, and only default, linear, llama3 and yarn"));
    CHECK(says(with({{"rope_type", "linear"}, {"factor", 0}}),
               std::string("rope_parameters.") + layers + ".factor is 0"));
    CHECK(says(with({{"rope_type", "default"}, {"factor", 2.0}}), "factor is 2"));
    CHECK(says(with({{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}), "8 of the 16 features"));
  }
  json both = valid_of(gemma);
  both["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  CHECK(error_message([&] { read(both.dump()); }) == "");
  both["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
  CHECK(says(error_message([&] { read(both.dump()); }), "rope_scaling and rope_parameters.full_attention",
             "only one"));
}

TEST_CASE("what Gemma's settings do not state is what transformers takes") {
  json settings = valid_of("gemma3_text");
  for (const char* name : {"head_dim", "num_key_value_heads", "tie_word_embeddings", "rope_theta"})
    settings.erase(name);
  settings["num_attention_heads"] = 8;
  const ModelConfig config = read(settings.dump());
  CHECK(config.head_size == 256);
  CHECK(config.n_kv_head == 4);
  CHECK(config.tie_word_embeddings);
  CHECK(config.rope_theta == 1e6);
  CHECK(config.norm_epsilon == 1e-6f);
}

TEST_CASE("a mixture has as many experts, chosen ones and columns as its settings say") {
  for (const std::string& family : kMixtures) {
    CAPTURE(family);
    const auto config = [&](const json& more) {
      json settings = valid_of(family);
      settings.update(more);
      return read(settings.dump());
    };
    const ModelConfig some = config(json::object());
    CHECK(some.n_experts == 8);
    CHECK(some.experts_per_token == 2);
    CHECK(some.expert_inner == 80);
    CHECK(some.mlp_matrices == 24);
    // As transformers 5 saves it, in the place of num_experts or beside it.
    CHECK(config({{"num_experts", nullptr}, {"num_local_experts", 5}}).n_experts == 5);
    CHECK(config({{"num_local_experts", 8}}).n_experts == 8);
    CHECK(says(error_of(family, "num_local_experts", 5), "num_experts is 8 and num_local_experts 5"));
    CHECK(config({{"num_experts_per_tok", 8}}).experts_per_token == 8);
    for (const json& chosen : {json(0), json(9), json(-1), json(1.5), json("two")}) {
      CHECK(says(error_of(family, "num_experts_per_tok", chosen), "num_experts_per_tok is " + chosen.dump(),
                 "not an integer from 1 to 8"));
    }
    for (const json& experts : {json(0), json(-8), json("many"), json(1 << 17)})
      CHECK(says(error_of(family, "num_experts", experts), "num_experts is " + experts.dump(), "from 1 to"));
    CHECK(says(error_of(family, "num_experts", 1), "num_experts_per_tok is 2", "from 1 to 1"));
  }
  CHECK(read(valid_of("llama").dump()).n_experts == 0);
}

TEST_CASE("what a mixture's settings do not state is what transformers takes") {
  for (const std::string& family : kMixtures) {
    CAPTURE(family);
    json settings = valid_of(family);
    for (const char* name :
         {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "rope_theta", "num_key_value_heads"})
      settings.erase(name);
    settings["num_attention_heads"] = 8;
    settings["hidden_size"] = 64;
    const ModelConfig config = read(settings.dump());
    const bool mixtral = family == "mixtral", olmoe = family == "olmoe";
    CHECK(config.n_experts == (mixtral ? 8 : olmoe ? 64 : 128));
    CHECK(config.experts_per_token == (mixtral ? 2 : 8));
    CHECK(config.expert_inner == (mixtral || olmoe ? 80 : 768));
    CHECK(config.n_kv_head == (mixtral || olmoe ? 8 : 4));
    CHECK(config.norm_epsilon == (mixtral || olmoe ? 1e-5f : 1e-6f));
    CHECK(config.rope_theta == (mixtral ? 1e6 : 1e4));
    CHECK(config.head_size == 8);
    CHECK(!config.tie_word_embeddings);
  }
}

TEST_CASE("some layers of Qwen3-MoE have one MLP, and no layer of other mixtures") {
  const auto config = [](const json& more) {
    json settings = valid_of("qwen3_moe");
    settings.update({{"num_hidden_layers", 4}, {"moe_intermediate_size", 40}});
    settings.update(more);
    return read(settings.dump());
  };
  // The numbers of routers tell how many layers have one.
  const std::size_t others = config({{"decoder_sparse_step", 5}}).vector_numbers, router = 48 * 8;
  const auto routers = [&](const json& more) {
    return static_cast<double>(config(more).vector_numbers - others) / static_cast<double>(router);
  };
  CHECK(routers(json::object()) == 4.0);
  CHECK(routers({{"decoder_sparse_step", 2}}) == 2.0);
  CHECK(routers({{"decoder_sparse_step", 3}}) == 1.0);
  CHECK(routers({{"mlp_only_layers", nullptr}}) == 4.0);
  CHECK(routers({{"mlp_only_layers", json::array()}}) == 4.0);
  CHECK(routers({{"mlp_only_layers", {0, 3}}}) == 2.0);
  CHECK(routers({{"mlp_only_layers", {0, 3}}, {"decoder_sparse_step", 2}}) == 1.0);
  CHECK(routers({{"mlp_only_layers", {0, 1, 2, 3}}}) == 0.0);
  CHECK(config({{"mlp_only_layers", {0, 1, 2, 3}}}).n_experts == 0);
  // The width of an MLP beside experts, and of experts alone.
  CHECK(config({{"mlp_only_layers", {0}}}).n_inner == 80);
  CHECK(config({{"mlp_only_layers", {0}}}).expert_inner == 40);
  CHECK(config({{"mlp_only_layers", {0}}}).mlp_matrices == 12);
  CHECK(config(json::object()).n_inner == 40);
  for (const json& step : {json(0), json(-1), json(1.5), json("two")})
    CHECK(says(error_of("qwen3_moe", "decoder_sparse_step", step), "decoder_sparse_step is ", "from 1"));
  for (const json& layer : {json(2), json(-1), json(0.5), json("first"), json(true)})
    CHECK(says(error_of("qwen3_moe", "mlp_only_layers", json::array({layer})),
               "mlp_only_layers lists " + layer.dump(), "not a layer from 0 to 1"));
  CHECK(says(error_of("qwen3_moe", "mlp_only_layers", 1), "mlp_only_layers is 1", "not a list"));
  for (const char* one : {"norm_topk_prob", "use_sliding_window"})
    CHECK(says(error_of("qwen3_moe", one, 1), std::string(one) + " is 1", "true or false"));
  CHECK(says(error_of("qwen3_moe", "moe_intermediate_size", 0), "moe_intermediate_size is 0"));
  for (const std::string other : {"mixtral", "olmoe"}) {
    CHECK(says(error_of(other, "decoder_sparse_step", 2), "decoder_sparse_step is 2", "only 1"));
    CHECK(says(error_of(other, "mlp_only_layers", json{0}), "mlp_only_layers is ", "only []"));
    CHECK(error_of(other, "mlp_only_layers", json::array()) == "");
  }
  CHECK(says(error_of("mixtral", "norm_topk_prob", false), "norm_topk_prob is false", "only true"));
  CHECK(says(error_of("olmoe", "clip_qkv", 8.0), "clip_qkv is 8", "null"));
}

TEST_CASE("a window of a mixture is that of all its layers, where transformers has one") {
  using Windows = std::vector<std::int32_t>;
  const auto windows = [](const std::string& family, const json& more) {
    json settings = valid_of(family);
    settings.update(more);
    return read(settings.dump()).windows;
  };
  CHECK(windows("mixtral", json::object()) == Windows{});
  CHECK(windows("mixtral", {{"max_position_embeddings", 8192}}) == Windows{});
  CHECK(windows("mixtral", {{"sliding_window", 20}}) == Windows{20, 20});
  CHECK(windows("qwen3_moe", {{"sliding_window", 20}}) == Windows{});
  CHECK(windows("qwen3_moe", {{"sliding_window", 20}, {"use_sliding_window", true}}) == Windows{20, 20});
  CHECK(windows("qwen3_moe", {{"use_sliding_window", true}, {"max_position_embeddings", 8192}}) ==
        Windows{4096, 4096});
  CHECK(windows("olmoe", {{"sliding_window", 20}}) == Windows{});
}

TEST_CASE("a softcap of any family, and what a mixture has beside a softmax over its experts, are refused") {
  for (const char* family : {"gpt_neox", "olmo", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe"}) {
    CAPTURE(family);
    for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
      CHECK(says(error_of(family, name, 30.0), std::string(name) + " is 30", "null"));
      CHECK(error_of(family, name, nullptr) == "");
    }
  }
  for (const char* family : {"mixtral", "olmoe", "qwen3_moe"}) {
    CAPTURE(family);
    CHECK(says(error_of(family, "n_shared_experts", 1), "n_shared_experts is 1", "0"));
    CHECK(says(error_of(family, "shared_expert_intermediate_size", 64),
               "shared_expert_intermediate_size is 64"));
    CHECK(says(error_of(family, "scoring_func", "sigmoid"), "scoring_func is \"sigmoid\"", "softmax"));
    CHECK(says(error_of(family, "routed_scaling_factor", 2.5), "routed_scaling_factor is 2.5", "1"));
    for (const auto& [name, off] :
         {std::pair("n_shared_experts", json(0)), std::pair("scoring_func", json("softmax")),
          std::pair("routed_scaling_factor", json(1.0))})
      CHECK(error_of(family, name, off) == "");
  }
}

TEST_CASE("types of layers that are not built are named") {
  CHECK(says(error_of("qwen3", "layer_types", json{"full_attention", "chunked_attention"}), "layer_types",
             "\"chunked_attention\"", "\"sliding_attention\""));
  for (const json& types : {json::array(), json{"full_attention"}, json(3), json("full_attention"),
                            json{"full_attention", "full_attention", "full_attention"}}) {
    CAPTURE(types.dump());
    CHECK(says(error_of("qwen3", "layer_types", types), "layer_types is ", "not a list of 2 types"));
  }
  CHECK(says(error_of("qwen3", "layer_types", json{"full_attention"}),
             "layer_types is a list of 1, not a list of 2"));
  for (const json& window : {json(0), json(-1), json(2.5), json("wide")}) {
    CAPTURE(window.dump());
    CHECK(says(error_of("mistral", "sliding_window", window), "sliding_window is "));
  }
}

TEST_CASE("what the file and what the family report are both kept, and settings without effect are named") {
  json settings = valid();
  for (const char* name : {"reorder_and_upcast_attn", "add_cross_attention"}) settings[name] = true;
  Settings file("f", settings);
  file.remarks = {"of the file"};
  const TemporaryFolder folder;
  CHECK(read_config(file, folder.path()).remarks ==
        std::vector<std::string>{"of the file", "reorder_and_upcast_attn has no effect here",
                                 "add_cross_attention has no effect here"});
}

TEST_CASE("a window that is meant and not written is transformers' of 4,096") {
  const auto config = [](const std::string& family, const json& more) {
    json settings = valid_of(family);
    settings["max_position_embeddings"] = 8192;
    settings.update(more);
    return read(settings.dump());
  };
  for (const json& more : {json::object(), json{{"use_sliding_window", false}},
                           json{{"layer_types", {"full_attention", "full_attention"}}}}) {
    CAPTURE(more.dump());
    const ModelConfig mistral = config("mistral", more);
    CHECK(mistral.windows == std::vector<std::int32_t>{4096, 4096});
    REQUIRE(mistral.remarks.size() == 1);
    CHECK(says(mistral.remarks[0], "sliding_window is not stated", "4096 positions"));
  }
  CHECK(config("mistral", {{"sliding_window", nullptr}}).windows.empty());
  CHECK(config("mistral", {{"sliding_window", 4096}}).remarks.empty());
  CHECK(config("mistral", {{"max_position_embeddings", 4096}}).remarks.empty());
  for (const std::string qwen : {"qwen2", "qwen3"}) {
    const auto last_window = [&](const json& more) {
      const ModelConfig found = config(qwen, more);
      return found.window(found.n_layer - 1);
    };
    CHECK(last_window(json::object()) == kNoWindow);
    CHECK(last_window({{"use_sliding_window", true}, {"max_window_layers", 1}}) == 4096);
    CHECK(
        last_window({{"use_sliding_window", true}, {"max_window_layers", 1}, {"sliding_window", nullptr}}) ==
        kNoWindow);
    // The layers before max_window_layers, 28 if it is missing, see everything; here there are two.
    CHECK(last_window({{"use_sliding_window", true}, {"max_window_layers", 2}}) == kNoWindow);
    CHECK(last_window({{"use_sliding_window", true}}) == kNoWindow);
    CHECK(last_window({{"use_sliding_window", true}, {"num_hidden_layers", 29}}) == 4096);
  }
  for (const std::string other : {"llama", "olmo"})
    CHECK(config(other, {{"sliding_window", 20}}).windows.empty());
}

TEST_CASE("all end tokens count, those of config.json and those of generation_config.json") {
  const TemporaryFolder folder;
  json settings = valid_of("llama");
  settings["eos_token_id"] = {7, 9};
  folder.write("config.json", settings.dump());
  CHECK(read_config(folder.path()).end_tokens == EndTokens{7, 9});
  folder.write("generation_config.json", R"({"eos_token_id": [9, 11]})");
  CHECK(read_config(folder.path()).end_tokens == EndTokens{7, 9, 11});
  folder.write("generation_config.json", R"({"eos_token_id": 3})");
  CHECK(read_config(folder.path()).end_tokens == EndTokens{7, 9, 3});
  folder.write("generation_config.json", R"({"eos_token_id": [100]})");
  CHECK(says(error_message([&] { read_config(folder.path()); }), "generation_config.json",
             "eos_token_id is 100", "from 0 to 99"));
}

TEST_CASE("a generation_config.json or a vocab.json that is there and cannot be read is an error") {
  for (const std::string name : {"generation_config.json", "vocab.json"}) {
    CAPTURE(name);
    const TemporaryFolder folder;
    json settings = valid_of("llama");
    settings.erase("eos_token_id");  // only then vocab.json counts
    folder.write("config.json", settings.dump());
    const auto error = [&] { return error_message([&] { read_config(folder.path()); }); };
    CHECK(error() == "");
    std::filesystem::create_symlink(folder.path() / "nowhere", folder.path() / name);
    CHECK(says(error(), name, "does not exist"));
    std::filesystem::remove(folder.path() / name);
    std::filesystem::create_symlink(folder.path() / name, folder.path() / name);
    CHECK(says(error(), name, "cannot be read"));
    std::filesystem::remove(folder.path() / name);
    std::filesystem::create_directory(folder.path() / name);
    CHECK(says(error(), name, "is a folder"));
  }
}

TEST_CASE("generation_config.json has sampling for chats, and other settings that change a text") {
  const TemporaryFolder folder;
  const auto config = [&](const std::string& generation) {
    folder.write("generation_config.json", generation);
    return generation_config_of(folder.path());
  };
  const auto lists = [&](const std::string& generation) {
    const GenerationConfig read = config(generation);
    return list_of(read.sampling) + "; " + list_of(read.others);
  };
  // As in a published chat model of the Qwen2.5 series, and two settings more.
  CHECK(lists(R"({"bos_token_id": 3, "pad_token_id": 3, "do_sample": true, "eos_token_id": [7, 9],
      "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "transformers_version": "4.37.0",
      "suppress_tokens": [5, 6], "min_p": 0.05})") ==
        "do_sample true, temperature 0.7, top_k 20, top_p 0.8, min_p 0.05, repetition_penalty 1.1; "
        "suppress_tokens");
  CHECK(lists(R"({"eos_token_id": 7, "use_cache": true, "max_length": 4096, "output_scores": true})") ==
        "; ");
  CHECK(lists(R"({"do_sample": false, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0,
      "suppress_tokens": [], "no_repeat_ngram_size": 0, "num_beams": 1, "min_length": 0, "temperature_": 2,
      "guidance_scale": null})") == "; ");
  CHECK(lists(R"({"top_k": -1})") == "; ");
  CHECK(lists(R"({"top_k": 50})") == "top_k 50; ");  // a default elsewhere
  CHECK(lists(R"({"top_k": 5.0})") == "top_k 5; ");
  // Without effect on a text, but they may replace what a server does by default.
  const auto sampling = config(R"({"do_sample": false, "temperature": 1.0, "top_k": 0})").sampling;
  REQUIRE(sampling.size() == 2);
  CHECK(sampling[0].option() == "--do-sample");
  CHECK(sampling[0].value == "false");
  CHECK(sampling[1].option() == "--temperature");
  const json neutral{{"temperature", 1},
                     {"top_k", 0},
                     {"top_p", 1},
                     {"min_p", 0},
                     {"top_h", nullptr},
                     {"typical_p", 1},
                     {"epsilon_cutoff", 0},
                     {"eta_cutoff", 0},
                     {"repetition_penalty", 1},
                     {"no_repeat_ngram_size", 0},
                     {"encoder_repetition_penalty", 1},
                     {"encoder_no_repeat_ngram_size", 0},
                     {"forced_bos_token_id", nullptr},
                     {"forced_eos_token_id", nullptr},
                     {"guidance_scale", 1},
                     {"penalty_alpha", 0},
                     {"min_length", 0},
                     {"min_new_tokens", 0},
                     {"max_new_tokens", nullptr},
                     {"num_beams", 1},
                     {"num_beam_groups", 1},
                     {"diversity_penalty", 0}};
  for (const auto& [name_, value] : neutral.items()) {
    const auto& name = name_;  // clang 14 captures no structured binding
    CAPTURE(name);
    CHECK(lists(json{{name, value}}.dump()) == "; ");
    CHECK(says(lists(json{{name, 3}}.dump()), name + " 3"));
  }
  for (const std::string name :
       {"suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "force_words_ids", "sequence_bias",
        "exponential_decay_length_penalty", "watermarking_config", "dola_layers", "stop_strings"}) {
    CAPTURE(name);
    CHECK(lists(json{{name, {1, 2}}}.dump()) == "; " + name);
  }
  const auto file = folder.path() / "generation_config.json";
  GenerationConfig unread = config(R"({"top_k": 3, "min_p": 0.5, "num_beams": 4})");
  leave_unread(unread);
  CHECK(list_of(unread.others) == "top_k 3, min_p 0.5, num_beams 4");
  CHECK(unread.sampling.empty());
  folder.write("generation_config.json", R"({"top_k": 3, "eos_token_id": 5})");
  CHECK(list_of(generation_config_of(folder.path()).others).empty());
  CHECK(list_of(read_generation_config(file).others) == "eos_token_id 5");  // not of this model
  for (const std::string name : {"suppress_tokens", "begin_suppress_tokens"}) {
    const GenerationConfig suppressed = config(json{{name, {1, 2}}}.dump());
    CHECK(error_message([&] { chat_request_defaults(suppressed); }) ==
          file.string() + ": " + name +
              " is set, but chats cannot suppress tokens; remove it to chat without it");
  }
  chat_request_defaults(config(R"({"suppress_tokens": [], "begin_suppress_tokens": null, "min_length": 2})"));
  std::filesystem::remove(file);
  CHECK(generation_config_of(folder.path()).sampling.empty());
  std::filesystem::create_symlink(folder.path() / "nowhere", file);
  CHECK(says(error_message([&] { generation_config_of(folder.path()); }), "does not exist"));
}

TEST_CASE(
    "what a generation_config.json sets is reported: what is obeyed with a note, and the rest as a warning") {
  GenerationConfig config{
      .file = "f.json",
      .sampling = {{"temperature", "0.5", true}, {"top_p", "1.0", false}, {"top_k", "9", true}},
      .others = {{"num_beams", "4", true}, {"suppress_tokens", "", true}}};
  const auto said = [&] {
    const Captured captured(stderr);
    report_generation_config(config, "; options override it");
    return captured.text();
  };
  const std::string
      sets = "f.json sets temperature 0.5, top_k 9; options override it\n",
      unread =
          "warning: f.json sets num_beams 4, suppress_tokens, which nothing reads here; options and "
          "requests set such values\n";
  CHECK(said() == sets + unread);
  config.others.clear();
  CHECK(said() == sets);
  config.sampling = {{"top_p", "1.0", false}};
  CHECK(said() == "");
}

TEST_CASE("the sampling that a model recommends is the default of a chat's options and of its requests") {
  GenerationConfig config{.file = "f",
                          .sampling = {{"do_sample", "true", true},
                                       {"temperature", "0.5", true},
                                       {"top_k", "9", true},
                                       {"top_p", "1.0", false},
                                       {"min_p", "0.25", true}},
                          .others = {}};
  bool do_sample = false;
  float temperature = 1.0f, top_p = 0.75f;
  int top_k = 1;
  CommandLine line("A program.");
  line.add("--do-sample", &do_sample, "help");
  line.add("--temperature", &temperature, "help", at_least(0));
  line.add("--top-k", &top_k, "help", at_least(1));
  line.add("--top-p", &top_p, "help", between(0, 1));
  std::vector<std::string> words{"program", "--top-k", "3"};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  GenerationConfig taken;
  line.parse(static_cast<int>(pointers.size()), pointers.data(),
             [&] { taken = set_chat_defaults(line, config); });
  CHECK(std::tuple(do_sample, temperature, top_k, top_p) == std::tuple(true, 0.5f, 3, 0.75f));
  CHECK(list_of(taken.sampling) == "do_sample true, temperature 0.5");  // --top-k is given
  CHECK(list_of(taken.others) == "min_p 0.25");                         // there is no such option

  CHECK(chat_request_defaults(config) ==
        OptionTexts{{"temperature", "0.5"}, {"top_k", "9"}, {"top_p", "1.0"}, {"min_p", "0.25"}});
  config.sampling[0].value = "false";
  CHECK(chat_request_defaults(config) ==
        OptionTexts{{"top_k", "9"}, {"top_p", "1.0"}, {"min_p", "0.25"}, {"temperature", "0"}});
  for (GenerationSetting& setting : config.sampling)
    if (setting.name == "do_sample") setting.value = "maybe";
  CHECK(error_message([&] { chat_request_defaults(config); }) ==
        "f: do_sample is maybe, but it must be true or false");
  CHECK(error_message([&] { set_chat_defaults(line, config); }) ==
        "f: --do-sample is maybe, but it must be true or false");
}
