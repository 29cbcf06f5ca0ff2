// The configuration in a GGUF file is that of config.json, and what it does not say is assumed aloud.
#include "common/model/gguf_config.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "common/model/config.h"
#include "common/model/family.h"
#include "common/model/generation_config.h"
#include "tests/error_message.h"
#include "tests/gguf_writer.h"
#include "tests/temporary_folder.h"

using namespace staircase;
using nlohmann::json;

namespace {

const std::filesystem::path kReference = std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference";

GgufWriter llama() {
  GgufWriter writer;
  writer.text("general.architecture", "llama")
      .number("llama.block_count", 3)
      .number("llama.context_length", 256)
      .number("llama.embedding_length", 64)
      .number("llama.feed_forward_length", 176)
      .number("llama.attention.head_count", 4)
      .real("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5});
  return writer;
}

GgufConfig config_of(const GgufWriter& writer) {
  const std::string bytes = writer.bytes();
  return gguf_config({parse_gguf(std::as_bytes(std::span(bytes)), "model.gguf"), "model.gguf"});
}

json settings_of(const GgufWriter& writer) {
  return config_of(writer).settings;
}

std::string error_of(const GgufWriter& writer) {
  return error_message([&] { config_of(writer); });
}

/// Whether both are the same, a number being rounded to float32 in a GGUF file.
bool same(const json& one, const json& other) {
  if (one.is_number_float() || other.is_number_float()) return one.get<float>() == other.get<float>();
  return one == other;
}

}  // namespace

TEST_CASE("a file of llama.cpp's converter yields the same as config.json") {
  std::ifstream in(kReference / "gguf-families.json");
  const json models = json::parse(in);
  for (const auto& [model_, reference] : models.items()) {
    const auto& model = model_;  // clang 14 captures no structured binding
    CAPTURE(model);
    const json settings = gguf_config(GgufFile(kReference / "gguf-families" / (model + ".gguf"))).settings;
    const json& expected = reference["config"];
    for (const auto& [key_, value] : settings.items()) {
      const auto& key = key_;  // clang 14 captures no structured binding
      CAPTURE(key);
      if (key == "vocab_size") {
        CHECK(value == 8);  // the rows that the small file kept
      } else if (key == "rope_parameters") {
        const json& rotation = expected[key];
        CHECK(same(value["rope_theta"], rotation["rope_theta"]));
        CHECK(same(value.value("partial_rotary_factor", 1.0), rotation.value("partial_rotary_factor", 1.0)));
        CHECK(value["rope_type"] == "default");  // llama3's scaling is in a tensor
      } else if (model == "neox-sequential" && key == "hidden_act") {
        CHECK(value == "gelu");  // the file does not say that it is gelu_new
      } else if (key == "n_inner") {
        CHECK(value == 256);  // null in config.json: four times the width
      } else {
        CHECK(same(value, expected.value(key, json())));
      }
    }
    for (const char* key : {"hidden_size",
                            "num_hidden_layers",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "intermediate_size",
                            "max_position_embeddings",
                            "rms_norm_eps",
                            "layer_norm_eps",
                            "layer_norm_epsilon",
                            "use_parallel_residual",
                            "rope_parameters",
                            "tie_word_embeddings",
                            "bos_token_id",
                            "eos_token_id",
                            "model_type",
                            "n_embd",
                            "n_layer",
                            "n_head",
                            "n_positions",
                            "activation_function",
                            "hidden_act"}) {
      CAPTURE(key);
      CHECK(settings.contains(key) == expected.contains(key));
    }
  }
}

TEST_CASE("a file of GPT-NeoX does not have all settings, and the assumed ones are reported") {
  const GgufConfig config = gguf_config(GgufFile(kReference / "gguf-families/pythia.gguf"));
  CHECK(config.settings["rope_parameters"]["rope_theta"] == 10000.0);
  CHECK(config.settings["hidden_act"] == "gelu");
  REQUIRE(config.remarks.size() == 2);
  CHECK(says(config.remarks[0], "pythia.gguf", "rope_theta of 10000", "assumed"));
  CHECK(says(config.remarks[1], "pythia.gguf", "\"gelu\"", "assumed"));
  CHECK(read_settings(kReference / "gguf-families/pythia.gguf").remarks == config.remarks);
  CHECK(gguf_config(GgufFile(kReference / "gguf-families/llama-3.gguf")).remarks.empty());
}

TEST_CASE("a file of Gemma 3 yields its config.json, and what it leaves out is llama.cpp's") {
  const auto gemma = [](std::uint32_t blocks = 7) {
    GgufWriter writer;
    writer.text("general.architecture", "gemma3")
        .number("gemma3.block_count", blocks)
        .number("gemma3.context_length", 256)
        .number("gemma3.embedding_length", 64)
        .number("gemma3.feed_forward_length", 176)
        .number("gemma3.attention.head_count", 2)
        .number("gemma3.attention.head_count_kv", 1)
        .number("gemma3.attention.key_length", 48)
        .number("gemma3.attention.value_length", 48)
        .real("gemma3.rope.freq_base", 1e6f)
        .real("gemma3.attention.layer_norm_rms_epsilon", 1e-6f)
        .floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5});
    return writer;
  };
  json want{{"model_type", "gemma3_text"},
            {"vocab_size", 5},
            {"tie_word_embeddings", true},
            {"hidden_size", 64},
            {"intermediate_size", 176},
            {"num_hidden_layers", 7},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"max_position_embeddings", 256},
            {"head_dim", 48},
            {"rms_norm_eps", static_cast<double>(1e-6f)},
            {"hidden_activation", "gelu_pytorch_tanh"},
            {"attention_bias", false},
            {"query_pre_attn_scalar", 48},
            {"sliding_window_pattern", 1},
            {"rope_parameters",
             {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}};
  CHECK(settings_of(gemma()) == want);
  CHECK(settings_of(gemma().number("gemma3.attention.sliding_window", 0)) == want);
  const json of_62 = settings_of(gemma(62));
  CHECK(of_62["query_pre_attn_scalar"] == 32);
  const auto windows = [&](GgufWriter writer) {
    const TemporaryFolder folder;
    return read_config(
               folder.write("model.gguf", writer.number("gemma3.attention.sliding_window", 20).bytes()))
        .windows;
  };
  using Windows = std::vector<std::int32_t>;
  constexpr std::int32_t kAll = kNoWindow;
  CHECK(windows(gemma()) == Windows{20, 20, 20, 20, 20, kAll, 20});
  CHECK(windows(gemma().number("gemma3.attention.sliding_window_pattern", 3)) ==
        Windows{20, 20, kAll, 20, 20, kAll, 20});
  CHECK(windows(gemma(3).numbers<std::uint8_t>("gemma3.attention.sliding_window_pattern", 7, {0, 1, 0})) ==
        Windows{kAll, 20, kAll});
  CHECK(
      says(error_message([&] {
             windows(gemma().numbers<std::uint8_t>("gemma3.attention.sliding_window_pattern", 7, {0, 1, 0}));
           }),
           "layer_types", "not a list of 7 types"));
  CHECK(says(error_message([&] { windows(gemma().number("gemma3.attention.sliding_window_pattern", 0)); }),
             "sliding_window_pattern is 0"));
  want["rope_parameters"]["full_attention"].update(
      {{"rope_type", "linear"}, {"factor", 8.0}, {"original_max_position_embeddings", nullptr}});
  want["rope_parameters"]["sliding_attention"]["rope_theta"] = 5e3;
  CHECK(settings_of(gemma()
                        .text("gemma3.rope.scaling.type", "linear")
                        .real("gemma3.rope.scaling.factor", 8.0f)
                        .real("gemma3.rope.freq_base_swa", 5e3f)) == want);
  CHECK(says(error_of(gemma().real("gemma3.final_logit_softcapping", 30.0f)), "final_logit_softcapping is 30",
             "not supported"));
  CHECK(says(error_of(gemma().real("gemma3.attn_logit_softcapping", 50.0f)), "attn_logit_softcapping is 50"));
}

TEST_CASE("a file of a mixture yields its config.json, and the shares are as the family was trained") {
  const auto mixture = [](const std::string& family) {
    GgufWriter writer;
    writer.text("general.architecture", family)
        .number(family + ".block_count", 3)
        .number(family + ".context_length", 256)
        .number(family + ".embedding_length", 64)
        .number(family + ".feed_forward_length", 176)
        .number(family + ".attention.head_count", 4)
        .number(family + ".expert_count", 8)
        .number(family + ".expert_used_count", 2)
        .real(family + ".attention.layer_norm_rms_epsilon", 1e-5f)
        .floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5})
        .floats("blk.0.ffn_gate_inp.weight", {1, 1}, {1})
        .floats("blk.2.ffn_gate_inp.weight", {1, 1}, {1});
    return writer;
  };
  for (const auto& [family_, type_] :
       {std::pair{"llama", "mixtral"}, {"olmoe", "olmoe"}, {"qwen3moe", "qwen3_moe"}}) {
    const std::string family = family_, type = type_;
    CAPTURE(family);
    const json settings = settings_of(mixture(family));
    CHECK(settings["model_type"] == type);
    CHECK(settings["num_experts"] == 8);
    CHECK(settings["num_experts_per_tok"] == 2);
    CHECK(settings["norm_topk_prob"] == (family != "olmoe"));
    CHECK(settings_of(mixture(family).truth(family + ".expert_weights_norm", false))["norm_topk_prob"] ==
          false);
    const char* const width = family == "qwen3moe" ? "moe_intermediate_size" : "intermediate_size";
    CHECK(settings[width] == 176);
    CHECK(settings_of(mixture(family).number(family + ".expert_feed_forward_length", 48))[width] == 48);
    CHECK(settings.value("mlp_only_layers", json()) == (family == "qwen3moe" ? json{1} : json()));
    // Softmax is number 1 of llama.cpp's functions.
    CHECK(error_of(mixture(family).number(family + ".expert_gating_func", 1)) == "");
    CHECK(says(error_of(mixture(family).number(family + ".expert_gating_func", 2)), "gating_func is 2"));
    CHECK(error_of(mixture(family).real(family + ".expert_weights_scale", 1.0f)) == "");
    CHECK(says(error_of(mixture(family).real(family + ".expert_weights_scale", 2.5f)), "scale is 2.5"));
    CHECK(error_of(mixture(family).number(family + ".expert_shared_count", 0)) == "");
    CHECK(says(error_of(mixture(family).number(family + ".expert_shared_count", 1)), "shared_count is 1"));
  }
  const auto mixtral = [](std::uint32_t experts, std::uint32_t used) {
    GgufWriter writer = llama();
    return writer.number("llama.expert_count", experts).number("llama.expert_used_count", used);
  };
  const auto read = [](const GgufWriter& writer) {
    const TemporaryFolder folder;
    return error_message([&] { read_config(folder.write("m.gguf", writer.bytes())); });
  };
  CHECK(read(mixtral(8, 2)) == "");
  CHECK(says(read(mixtral(8, 9)), "num_experts_per_tok is 9", "from 1 to 8"));
  CHECK(says(read(mixtral(8, 0)), "llama.expert_used_count is 0", "from 1"));
  CHECK(says(read(llama().number("llama.expert_count", 8)), "has no llama.expert_used_count"));
  // A family without experts says so.
  GgufWriter qwen2;
  qwen2.text("general.architecture", "qwen2");
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "expert_count"})
    qwen2.number(std::string("qwen2.") + key, 8);
  qwen2.real("qwen2.attention.layer_norm_rms_epsilon", 1e-5f)
      .floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5});
  CHECK(says(error_of(qwen2), "qwen2.expert_count is 8", "not supported"));
}

TEST_CASE("the residuals of GPT-NeoX are parallel unless its file says otherwise") {
  GgufWriter writer;
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"})
    writer.number(std::string("gptneox.") + key, 4);
  writer.text("general.architecture", "gptneox")
      .real("gptneox.attention.layer_norm_epsilon", 1e-5f)
      .floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5});
  CHECK(settings_of(writer)["use_parallel_residual"] == true);
  for (const bool parallel : {true, false}) {
    GgufWriter own = writer;
    CHECK(settings_of(own.truth("gptneox.use_parallel_residual", parallel))["use_parallel_residual"] ==
          parallel);
  }
}

TEST_CASE("missing settings have the defaults of llama.cpp") {
  const json settings = settings_of(llama());
  CHECK(settings["num_key_value_heads"] == 4);
  CHECK(settings["rope_parameters"] == json{{"rope_type", "default"}, {"rope_theta", 10000.0}});
  CHECK(settings["vocab_size"] == 5);
  CHECK(settings["tie_word_embeddings"] == true);
  CHECK(!settings.contains("eos_token_id"));
  CHECK(!settings.contains("head_dim"));
  CHECK(settings_of(llama().floats("output.weight", {1, 5}, {1, 2, 3, 4, 5}))["tie_word_embeddings"] ==
        false);
}

TEST_CASE("settings that compute something else reach the reader of the configuration, or are refused") {
  const json scaled = settings_of(llama()
                                      .text("llama.rope.scaling.type", "yarn")
                                      .real("llama.rope.scaling.factor", 4.0f)
                                      .number("llama.rope.scaling.original_context_length", 64));
  CHECK(scaled["rope_parameters"]["rope_type"] == "yarn");
  CHECK(scaled["rope_parameters"]["factor"] == 4.0);
  CHECK(scaled["rope_parameters"]["original_max_position_embeddings"] == 64);
  CHECK(settings_of(llama().real("llama.rope.scale_linear", 2.0f))["rope_parameters"]["rope_type"] ==
        "linear");
  CHECK(settings_of(llama().text("llama.rope.scaling.type", "none"))["rope_parameters"]["rope_type"] ==
        "default");
  CHECK(settings_of(llama().number("llama.attention.sliding_window", 128))["sliding_window"] == 128);
  CHECK(!settings_of(llama().number("llama.attention.sliding_window", 0)).contains("sliding_window"));
  const TemporaryFolder folder;
  const ModelConfig windowed =
      read_config(folder.write("m.gguf", llama().number("llama.attention.sliding_window", 128).bytes()));
  CHECK(windowed.n_positions == 256);
  CHECK(windowed.windows == std::vector<std::int32_t>(static_cast<std::size_t>(windowed.n_layer), 128));
  for (const char* factor : {"llama.rope.scaling.attn_factor", "llama.rope.scaling.yarn_attn_factor"}) {
    CHECK(says(error_of(llama().real(factor, 1.5f)), factor, "is 1.5"));
    CHECK(error_of(llama().real(factor, 1.0f)) == "");
  }
  CHECK(settings_of(llama().floats("blk.0.attn_q.bias", {4}, {1, 2, 3, 4}))["attention_bias"] == true);
  CHECK(settings_of(llama().floats("blk.0.ffn_up.bias", {4}, {1, 2, 3, 4}))["mlp_bias"] == true);
  CHECK(settings_of(llama().number("llama.rope.dimension_count",
                                   8))["rope_parameters"]["partial_rotary_factor"] == 0.5);
  GgufWriter olmo;
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"})
    olmo.number(std::string("olmo.") + key, 4);
  olmo.text("general.architecture", "olmo").floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5});
  CHECK(settings_of(olmo)["clip_qkv"].is_null());
  CHECK(settings_of(olmo.real("olmo.attention.clamp_kqv", 8.0f))["clip_qkv"] == 8.0);
  // Off, in every type of number.
  CHECK(error_of(llama().number("llama.expert_count", 0)) == "");
  CHECK(error_of(llama().pair("llama.expert_count", 5, raw<std::int32_t>(0))) == "");
  CHECK(error_of(llama().real("llama.logit_scale", 0.0f)) == "");
  CHECK(says(error_of(llama().pair("llama.expert_count", 5, raw<std::int32_t>(-1))), "expert_count is -1"));
  CHECK(says(error_of(llama().real("llama.logit_scale", 0.5f)), "llama.logit_scale is 0.5"));
  CHECK(says(error_of(llama().truth("llama.attention.causal", false)), "llama.attention.causal is false"));
  CHECK(error_of(llama().truth("llama.attention.causal", true)) == "");
  CHECK(says(
      error_of(llama().number("llama.attention.key_length", 16).number("llama.attention.value_length", 8)),
      "value_length is 8", "key_length 16"));
}

TEST_CASE("a window is in use in each family, and 0 is none; heads are no wider than the model") {
  for (const char* family : {"llama", "qwen2", "qwen3"}) {
    CAPTURE(family);
    const auto of_window = [&](std::uint32_t window) {
      GgufWriter writer;
      const std::string prefix = std::string(family) + ".";
      writer.text("general.architecture", family)
          .number(prefix + "block_count", 3)
          .number(prefix + "context_length", 256)
          .number(prefix + "embedding_length", 64)
          .number(prefix + "feed_forward_length", 176)
          .number(prefix + "attention.head_count", 4)
          .number(prefix + "attention.sliding_window", window)
          .real(prefix + "attention.layer_norm_rms_epsilon", 1e-5f)
          .floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5});
      return settings_of(writer);
    };
    CHECK(of_window(20)["sliding_window"] == 20);
    CHECK(of_window(20)["use_sliding_window"] == true);
    CHECK_FALSE(of_window(0).contains("sliding_window"));
    CHECK_FALSE(of_window(0).contains("use_sliding_window"));
  }
  GgufWriter narrow;
  narrow.text("general.architecture", "llama")
      .number("llama.block_count", 3)
      .number("llama.context_length", 256)
      .number("llama.embedding_length", 3)
      .number("llama.feed_forward_length", 176)
      .number("llama.attention.head_count", 4)
      .real("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5});
  CHECK(says(error_of(narrow), "embedding_length is 3", "less than the 4 heads"));
}

TEST_CASE(
    "each setting that changes llama.cpp's computation is refused where nothing reads it, unless it is off") {
  GgufWriter gpt2;
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"})
    gpt2.number(std::string("gpt2.") + key, 4);
  gpt2.text("general.architecture", "gpt2")
      .real("gpt2.attention.layer_norm_epsilon", 1e-5f)
      .floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5});
  CHECK(config_of(gpt2).remarks.empty());
  for (const std::string setting : {"attention.clamp_kqv",
                                    "attention.max_alibi_bias",
                                    "attention.output_scale",
                                    "attention.scale",
                                    "attention.sliding_window",
                                    "attention.sliding_window_pattern",
                                    "attention.temperature_scale",
                                    "attn_logit_softcapping",
                                    "embedding_scale",
                                    "expert_count",
                                    "final_logit_softcapping",
                                    "hidden_activation",
                                    "logit_scale",
                                    "nextn_predict_layers",
                                    "residual_scale",
                                    "rope.dimension_sections",
                                    "rope.scale_linear",
                                    "rope.scaling.attn_factor",
                                    "rope.scaling.factor",
                                    "rope.scaling.type",
                                    "rope.scaling.yarn_attn_factor"}) {
    CAPTURE(setting);
    const std::string key = "gpt2." + setting;
    GgufWriter set = gpt2, text = gpt2, list = gpt2, off = gpt2;
    CHECK(says(error_of(set.real(key, 0.5f)), "model.gguf: " + key + " is 0.5, which is not supported"));
    CHECK(says(error_of(text.text(key, "gelu")), key + " is \"gelu\""));
    CHECK(says(error_of(list.numbers<std::int32_t>(key, 5, {0, 0})), key, "a list of 2"));
    off.real(key, setting.ends_with("attn_factor") ? 1.0f : 0.0f);
    CHECK(config_of(off).remarks.empty());
  }
  for (const std::string setting :
       {"expert_used_count", "rope.scaling.finetuned", "tensor_data_layout", "vocab_size"}) {
    CAPTURE(setting);
    GgufWriter harmless = gpt2;
    CHECK(config_of(harmless.number("gpt2." + setting, 7)).remarks.empty());
  }
}

TEST_CASE("an unknown setting is remarked upon") {
  const GgufConfig config = config_of(llama().number("llama.new_setting", 1).number("llama.vocab_size", 5));
  REQUIRE(config.remarks.size() == 1);
  CHECK(says(config.remarks[0], "model.gguf", "llama.new_setting", "no effect"));
}

TEST_CASE("the sampling in a GGUF file's metadata is that of a generation_config.json") {
  const TemporaryFolder folder;
  const auto lists = [&](const GgufWriter& writer) {
    folder.write("model.gguf", writer.bytes());
    const GenerationConfig config = generation_config_of(folder.path() / "model.gguf");
    return list_of(config.sampling) + "; " + list_of(config.others);
  };
  CHECK(lists(llama()) == "; ");
  CHECK(lists(llama()
                  .real("general.sampling.temp", 0.7f)
                  .number("general.sampling.top_k", 20)
                  .real("general.sampling.top_p", 0.8f)
                  .real("general.sampling.min_p", 0.05f)
                  .real("general.sampling.penalty_repeat", 1.1f)
                  .real("general.sampling.xtc_threshold", 0.1f)) ==
        "min_p 0.05, repetition_penalty 1.1, do_sample true, temperature 0.7, top_k 20, top_p 0.8; "
        "general.sampling.xtc_threshold 0.1");
  CHECK(lists(llama().number("general.sampling.top_k", 0)) == "; ");
}

TEST_CASE("the rotated part of a head is a share that yields the part again") {
  for (std::uint32_t head = 2; head <= 256; ++head) {
    for (std::uint32_t turned = 2; turned < head; turned += 2) {
      GgufWriter writer = llama();
      const json settings = settings_of(
          writer.number("llama.attention.key_length", head).number("llama.rope.dimension_count", turned));
      const double share = settings["rope_parameters"]["partial_rotary_factor"];
      REQUIRE(static_cast<std::uint32_t>(share * head) == turned);
    }
  }
}

TEST_CASE("sizes that are missing, lists or impossible are named with their values") {
  for (const char* key : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                          "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    CAPTURE(key);
    GgufWriter writer;
    writer.text("general.architecture", "llama").floats("token_embd.weight", {1, 5}, {1, 2, 3, 4, 5});
    GgufWriter zero = writer, list = writer;
    for (const char* other : {"block_count", "context_length", "embedding_length", "feed_forward_length",
                              "attention.head_count"}) {
      if (std::string(other) == key) continue;
      for (GgufWriter* each : {&writer, &zero, &list}) each->number(std::string("llama.") + other, 4);
    }
    const bool is_number = std::string(key).ends_with("epsilon");
    if (!is_number) {
      for (GgufWriter* each : {&writer, &zero, &list})
        each->real("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    }
    CHECK(says(error_of(writer), "model.gguf", std::string("no llama.") + key));
    list.numbers<std::int32_t>(std::string("llama.") + key, 5, {1, 2});
    CHECK(says(error_of(list), std::string("llama.") + key, "a list of 2"));
    if (is_number) continue;
    CHECK(says(error_of(zero.number(std::string("llama.") + key, 0)), std::string("llama.") + key + " is 0"));
  }
  GgufWriter writer;
  CHECK(says(error_of(writer.text("general.architecture", "llama")), "no tensor token_embd.weight"));
  CHECK(says(error_of(GgufWriter().text("general.architecture", "llama2")), "\"llama2\"", "llama, qwen2"));
}

TEST_CASE("each of three settings names a token that ends a text") {
  for (const std::string which : {"eos", "eot", "eom"}) {
    CHECK(settings_of(llama().number("tokenizer.ggml." + which + "_token_id", 3))["eos_token_id"] == 3);
  }
}

TEST_CASE("the tokens that end a text are those of the metadata and the end markers in the vocabulary") {
  GgufWriter writer = llama();
  writer.texts("tokenizer.ggml.tokens", {"<|endoftext|>", "a", "<|im_end|>", "</s>", "<|eot_id|>"})
      .numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {3, 1, 3, 1, 4})
      .number("tokenizer.ggml.eos_token_id", 2)
      .number("tokenizer.ggml.eom_token_id", 0xFFFF'FFFF)
      .number("tokenizer.ggml.bos_token_id", 1);
  CHECK(settings_of(writer)["eos_token_id"] == json{2, 0, 4});
  CHECK(settings_of(writer)["bos_token_id"] == 1);
  for (const char* mark : {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>",
                           "<|end|>", "<end_of_turn>", "<EOT>", "</s>"}) {
    CAPTURE(mark);
    const auto ends = [&](int type) {
      GgufWriter one = llama();
      one.texts("tokenizer.ggml.tokens", {"a", mark}).number("tokenizer.ggml.eos_token_id", 0);
      if (type > 0) one.numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {1, type});
      return settings_of(one)["eos_token_id"];
    };
    for (const int type : {3, 4}) CHECK(ends(type) == json{0, 1});
    // Types may be wrong or missing. But "</s>" may be a normal token, in a vocabulary of code.
    const json otherwise = mark == std::string("</s>") ? json(0) : json{0, 1};
    for (const int type : {0, 1, 2, 5, 6}) CHECK(ends(type) == otherwise);
  }
  for (const char* key : {"eos", "eot", "eom"}) {
    GgufWriter named = llama();
    CHECK(settings_of(named.number(std::string("tokenizer.ggml.") + key + "_token_id", 3))["eos_token_id"] ==
          3);
  }
  GgufWriter alone = llama();
  CHECK(settings_of(alone.number("tokenizer.ggml.eos_token_id", 3))["eos_token_id"] == 3);
}
