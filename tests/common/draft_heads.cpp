// Hidden states and the output layer alone, and draft heads from files: what is read, and what is refused.
#include "common/model/draft_heads.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/error.h"
#include "common/base/hash.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"
#include "common/model/model_folder.h"
#include "common/model/stored_tensor.h"
#include "tests/compare.h"
#include "tests/error_message.h"
#include "tests/temporary_folder.h"
#include "tests/test_device.h"
#include "tests/tiny_model.h"
#include "tests/transformers.h"

namespace staircase {
namespace {

using Tokens = std::vector<int>;
using Floats = std::vector<float>;
using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kFamilyFolders = fs::path(STAIRCASE_SOURCE_TREE) / "tests/reference/families";

Floats copied(std::span<const float> values) {
  return {values.begin(), values.end()};
}

/// Two heads for a tiny model, in a folder that a test may change.
struct Heads {
  TemporaryFolder folder;
  Model model;
  json config{{"base_model_name_or_path", "someone/tiny"}, {"medusa_num_heads", 2}, {"medusa_num_layers", 1}};
  TinyModel file;  // writes any tensors

  Heads() : model(load_tiny(folder.path() / "tiny")) {
    const int n = model.config().n_embd;
    file.tensors.clear();
    for (int k = 0; k < 2; ++k) {
      TinyTensor weight{{n, n}, {}, "BF16"}, bias{{n}, {}, "F16"};
      for (int i = 0; i < n * n; ++i) weight.values.push_back(static_cast<float>((7 * i + k) % 256) / 128.0f);
      for (int i = 0; i < n; ++i) bias.values.push_back(static_cast<float>(i - k) / 64.0f);
      file.tensors[fmt::format("{}.0.linear.weight", k)] = weight;
      file.tensors[fmt::format("{}.0.linear.bias", k)] = bias;
    }
  }

  static Model load_tiny(const fs::path& path) {
    fs::create_directory(path);
    TinyModel().write(path);
    return Model::load(path, make_test_device(1));
  }

  std::vector<DraftHead> read() const {
    const fs::path heads = folder.path() / "heads";
    fs::create_directory(heads);
    file.write(heads);
    fs::rename(heads / "model.safetensors", heads / "medusa_lm_head.safetensors");
    folder.write("heads/config.json", config.dump());
    return read_draft_heads(model, heads);
  }

  /// The error, without the name of the folder.
  std::string refusal() const {
    std::string message = error_message([&] { read(); });
    const std::string path = folder.path().string() + "/";
    for (std::size_t at = message.find(path); at != std::string::npos; at = message.find(path))
      message.erase(at, path.size());
    return message;
  }
};

TEST_CASE("hidden states are what the last norm gives the output layer, in every family") {
  for (const char* family : {"gpt2", "pythia", "olmo", "llama-3", "qwen3-moe", "gemma3"}) {
    CAPTURE(family);
    Model model = Model::load(kFamilyFolders / family, make_test_device(2));
    const auto width = static_cast<std::size_t>(model.config().n_embd);
    CHECK(model.hidden_states().empty());
    Floats normed;
    model.on_stage([&](std::string_view name, std::span<const float> values) {
      if (name == "ln_f") normed = copied(values);
    });
    StaticKvCache cache(model);
    model.next_logits(Tokens{3, 1, 4}, cache);
    CHECK(model.hidden_states() == std::vector<Floats>{normed});
    const Floats logits = copied(model.last_logits(Tokens{1, 5, 9, 2}, 3, cache));
    const std::vector<Floats> states = model.hidden_states();
    REQUIRE(states.size() == 3);
    for (std::size_t row = 0; row < 3; ++row)
      CHECK(states[row] == copied(std::span(normed).subspan(row * width, width)));
    const double tolerance = (tests_are_for_gpu() ? 1e-3 : 1e-6) * largest(logits);
    const std::vector<Floats> all = model.output_logits(states), last = model.output_logits({&states[2], 1});
    REQUIRE(all.size() == 3);
    REQUIRE(last.size() == 1);
    const std::size_t size = logits.size() / 3;
    for (std::size_t row = 0; row < 3; ++row) {
      const Floats want = copied(std::span(logits).subspan(row * size, size));
      CHECK(difference("logits", all[row], want, size, tolerance) == "");
      if (row == 2) CHECK(difference("last logits", last[0], want, size, tolerance) == "");
    }
    CHECK(model.hidden_states() == states);  // still those of the call
  }
}

TEST_CASE("a vocabulary that was fitted holds for the output layer alone, too") {
  Heads heads;
  const std::vector<Floats> states(2, Floats(heads.model.config().n_embd, 1.0f));
  const std::vector<Floats> own = heads.model.output_logits(states);
  heads.model.fit_vocabulary(103);
  std::vector<Floats> fitted = heads.model.output_logits(states);
  for (Floats& row : fitted) {
    REQUIRE(row.size() == 103);
    CHECK(std::isinf(row[102]));
    row.resize(own[0].size());
  }
  CHECK(fitted == own);
}

TEST_CASE("hidden states that are not there are refused, and so is what cannot be one") {
  Heads heads;
  Model& model = heads.model;
  StaticKvCache cache(model);
  const Tokens tokens{1, 2};
  const std::span<const int> sequence = tokens;
  model.lazy_logits({&sequence, 1}, cache);
  CHECK(error_message([&] { model.hidden_states(); }) ==
        "hidden states are kept by next_logits and last_logits, not by lazy_logits");
  model.next_logits(tokens);
  CHECK(model.hidden_states().size() == 1);
  error_message([&] { model.next_logits(Tokens{1000}); });
  CHECK(model.hidden_states().size() == 1);  // of the last call that changed anything
  model.run_with([](Pass&) { throw Error("the device is gone"); });
  CHECK(error_message([&] { model.next_logits(tokens); }) == "the device is gone");
  CHECK(model.hidden_states().empty());
  CHECK(model.output_logits({}).empty());
  const auto refusal = [&](const Floats& state) {
    return error_message([&] { model.output_logits({&state, 1}); });
  };
  CHECK(refusal(Floats(25)) == "a hidden state has 25 numbers, but those of this model have 24");
  CHECK(refusal(Floats(24, std::numeric_limits<float>::infinity())) ==
        "the output layer computed a logit that is not finite from these hidden states");
}

/// One of two ranks, which takes the other for a copy of itself.
class LoneRank : public Ranks {
 public:
  LoneRank() : Ranks(0, 2) {}

 private:
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override {
    for (; !all.empty(); all = all.subspan(own.size())) std::ranges::copy(own, all.begin());
  }
  void post(std::span<const std::byte> /*bytes*/, int /*to*/) override {}
  std::size_t take(std::span<std::byte> bytes, int /*from*/) override { return bytes.size(); }
};

TEST_CASE("a model that is split between ranks has neither hidden states nor an output layer alone") {
  const TemporaryFolder folder;
  TinyModel().write(folder.path());
  LoneRank ranks;
  Model model = Model::load(folder.path(), make_cpu_device(1), DType::kFloat32, ranks);
  CHECK(error_message([&] { model.hidden_states(); }) ==
        "hidden states are not available for a model on several ranks; run it on one rank");
  CHECK(error_message([&] { model.output_logits({}); }) ==
        "the output layer is split between ranks; run the model on one rank");
}

TEST_CASE("draft heads are read with the numbers that multiply one input side by side") {
  const Heads heads;
  const std::vector<DraftHead> read = heads.read();
  REQUIRE(read.size() == 2);
  const std::size_t n = 24;
  for (std::size_t k = 0; k < 2; ++k) {
    const Floats& stored = heads.file.values(fmt::format("{}.0.linear.weight", k));
    CHECK(read[k].bias == heads.file.values(fmt::format("{}.0.linear.bias", k)));
    REQUIRE(read[k].weight.size() == n * n);
    for (std::size_t o = 0; o < n; ++o) {
      for (std::size_t i = 0; i < n; ++i) REQUIRE(read[k].weight[i * n + o] == stored[o * n + i]);
    }
  }
}

TEST_CASE("the embedded heads are those of tales-6m, and of no other weights") {
  const fs::path models = fs::path(STAIRCASE_SOURCE_TREE) / "models";
  const std::shared_ptr<Device> device = make_test_device(1);
  const Model large = Model::load(models / "tales-6m", device),
              small = Model::load(models / "tales-1m", device);
  CHECK(read_draft_heads(large, models / "draft-heads").size() == 3);
  const std::string message = error_message([&] { read_draft_heads(small, models / "draft-heads"); });
  CHECK(message.find("these heads were trained on \"tales-6m\" with base_model_fnv1a ") != std::string::npos);
  Hash own;
  own.add(MappedFile(models / "tales-1m/model.safetensors").bytes());
  CHECK(message.ends_with(fmt::format("tales-1m/model.safetensors has {:016x}", own.value())));
}

TEST_CASE("draft heads that do not fit are refused in one sentence") {
  const std::string file = "heads/medusa_lm_head.safetensors", config = "heads/config.json";
  const auto with = [](const std::function<void(Heads&)>& change) {
    Heads heads;
    change(heads);
    return heads.refusal();
  };
  CHECK(with([](Heads&) {}) == "");
  CHECK(with([](Heads& h) { h.config["medusa_num_heads"] = 0; }) ==
        config + ": medusa_num_heads is 0, not an integer from 1 to 64");
  CHECK(
      with([](Heads& h) { h.config["medusa_num_heads"] = "3"; }).starts_with(config + ": medusa_num_heads"));
  CHECK(with([](Heads& h) { h.config.erase("medusa_num_heads"); }).starts_with(config));
  CHECK(
      with([](Heads& h) { h.config["medusa_num_layers"] = 2; }).starts_with(config + ": medusa_num_layers"));
  for (const char* key : {"tree", "medusa_num_candidates", "base_model_revision"}) {
    CAPTURE(key);
    CHECK(with([&](Heads& h) { h.config[key] = true; }) ==
          fmt::format("{}: \"{}\" is true, which is not supported", config, key));
  }
  for (const char* key : {"_name_or_path", "transformers_version"})
    CHECK(with([&](Heads& h) { h.config[key] = "4.0"; }) == "");
  CHECK(with([](Heads& h) { h.config["base_model_name_or_path"] = "someone/large"; }) ==
        config + ": these heads were trained for \"large\", not for tiny");
  CHECK(with([](Heads& h) { h.config.erase("base_model_name_or_path"); }) ==
        config + ": these heads were trained for \"\", not for tiny");
  CHECK(with([](Heads& h) { h.config["base_model_fnv1a"] = "12"; })
            .starts_with(config +
                         ": these heads were trained on \"someone/tiny\" with base_model_fnv1a \"12\", "
                         "but tiny/model.safetensors has "));
  CHECK(with([](Heads& h) { h.config["medusa_num_heads"] = 3; }) ==
        file + " has no tensor 2.0.linear.weight, which its configuration requires");
  CHECK(with([](Heads& h) { h.config["medusa_num_heads"] = 1; }) ==
        file +
            " has 4 tensors, but the weights and biases of its heads are 2: output layers of heads are not "
            "supported");
  CHECK(with([](Heads& h) { h.file.tensors.erase("1.0.linear.bias"); }) ==
        file + " has no tensor 1.0.linear.bias, which its configuration requires");
  CHECK(with([](Heads& h) {
          h.file.tensors["0.0.linear.weight"] = {{24, 25}, Floats(std::size_t{24} * 25)};
        }) == file + ": tensor 0.0.linear.weight has shape [24, 25], but for this model it must be [24, 24]");
  CHECK(with([](Heads& h) {
          h.file.tensors["0.0.linear.bias"].shape = {1, 24};
        }) == file + ": tensor 0.0.linear.bias has shape [1, 24], but for this model it must be [24]");
  CHECK(with([](Heads& h) {
          h.file.tensors["0.0.linear.weight"].values[5] = std::numeric_limits<float>::quiet_NaN();
        }) == file + ": tensor 0.0.linear.weight has a non-finite value");
  CHECK(with([](Heads& h) { h.file.tensors["0.0.linear.bias"].dtype = "I64"; }).starts_with(file));
  CHECK(with([](Heads& h) { h.config = json::array({1}); }).starts_with(config));
  Heads heads;
  CHECK(error_message([&] { read_draft_heads(heads.model, "/no/such/folder"); }) != "");
}

}  // namespace
}  // namespace staircase
