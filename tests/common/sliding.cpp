// A cache that has slid, and positions that are not places: with rotary positions it computes attention to a
// window of the newest tokens, each at its own position. Against plain loops.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <vector>

#include "common/decoding/overflow.h"
#include "common/decoding/static_kv_cache.h"
#include "common/model/model.h"
#include "common/model/weight_matrices.h"
#include "tests/compare.h"
#include "tests/test_device.h"
#include "tests/transformers.h"

namespace staircase {
namespace {

using Tokens = std::vector<int>;
using Vector = std::vector<double>;

const std::filesystem::path kFamilies =
    std::filesystem::path(STAIRCASE_SOURCE_TREE) / "tests/reference/families";
constexpr int kWindow = 24;

Model load(const std::string& family, int context) {
  Model model = Model::load(kFamilies / family, make_test_device(2), DType::kFloat32);
  model.limit_context(context);
  return model;
}

/// Tokens in an order that no text has.
Tokens some_tokens(int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 1237 + 31) % 4000);
  return tokens;
}

/// Llama in double precision, token by token; each sees itself and the kWindow - 1 before it.
class PlainLlama {
 public:
  PlainLlama(const Model& model, double theta)
      : config_(model.config()), theta_(theta), weights_(stored_weights(model, "llama")) {}

  /// Logits after the last of `tokens`.
  Vector logits(const Tokens& tokens) const {
    std::vector<Vector> x;
    for (const int token : tokens) x.push_back(row("embed_tokens.weight", token));
    for (int l = 0; l < config_.n_layer; ++l) {
      const std::string block = fmt::format("layers.{}.", l);
      std::vector<Vector> q, k, v;
      for (std::size_t t = 0; t < x.size(); ++t) {
        const Vector normed = norm(x[t], block + "input_layernorm.weight");
        q.push_back(turned(product(normed, block + "self_attn.q_proj.weight"), t));
        k.push_back(turned(product(normed, block + "self_attn.k_proj.weight"), t));
        v.push_back(product(normed, block + "self_attn.v_proj.weight"));
      }
      for (std::size_t t = 0; t < x.size(); ++t) {
        add(product(attention(q[t], k, v, t), block + "self_attn.o_proj.weight"), x[t]);
        const Vector normed = norm(x[t], block + "post_attention_layernorm.weight");
        Vector gate = product(normed, block + "mlp.gate_proj.weight");
        const Vector up = product(normed, block + "mlp.up_proj.weight");
        for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1.0 + std::exp(-gate[i]));
        add(product(gate, block + "mlp.down_proj.weight"), x[t]);
      }
    }
    const bool tied = !weights_.contains("lm_head.weight");
    return product(norm(x.back(), "norm.weight"), tied ? "embed_tokens.weight" : "lm_head.weight");
  }

 private:
  static void add(const Vector& term, Vector& sum) {
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += term[i];
  }

  Vector row(const std::string& name, int index) const {
    const auto first = weights_.at(name).begin() + std::ptrdiff_t{index} * config_.n_embd;
    return Vector(first, first + config_.n_embd);
  }

  Vector product(const Vector& x, const std::string& name) const {
    const std::vector<float>& w = weights_.at(name);
    Vector y(w.size() / x.size());
    for (std::size_t i = 0; i < w.size(); ++i) y[i / x.size()] += static_cast<double>(w[i]) * x[i % x.size()];
    return y;
  }

  Vector norm(Vector x, const std::string& name) const {
    double squares = 0.0;
    for (const double value : x) squares += value * value;
    const double length =
        std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(config_.norm_epsilon));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= static_cast<double>(weights_.at(name)[i]) / length;
    return x;
  }

  Vector turned(Vector heads, std::size_t position) const {
    const std::size_t size = static_cast<std::size_t>(config_.head_size), half = size / 2;
    for (std::size_t first = 0; first < heads.size(); first += size) {
      for (std::size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(position) *
                             std::pow(theta_, -2.0 * static_cast<double>(i) / static_cast<double>(size));
        const double a = heads[first + i], b = heads[first + half + i];
        heads[first + i] = a * std::cos(angle) - b * std::sin(angle);
        heads[first + half + i] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
    return heads;
  }

  Vector attention(const Vector& q, const std::vector<Vector>& k, const std::vector<Vector>& v,
                   std::size_t t) const {
    const std::size_t size = static_cast<std::size_t>(config_.head_size),
                      first = t < kWindow ? 0 : t + 1 - kWindow;
    Vector result(q.size());
    for (std::size_t h = 0; h < q.size(); h += size) {
      const std::size_t shared =
          h / size / static_cast<std::size_t>(config_.n_head / config_.n_kv_head) * size;
      Vector weights;
      double sum = 0.0;
      for (std::size_t s = first; s <= t; ++s) {
        double score = 0.0;
        for (std::size_t i = 0; i < size; ++i) score += q[h + i] * k[s][shared + i];
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
        sum += weights.back();
      }
      for (std::size_t s = first; s <= t; ++s) {
        for (std::size_t i = 0; i < size; ++i) result[h + i] += weights[s - first] / sum * v[s][shared + i];
      }
    }
    return result;
  }

  const ModelConfig& config_;
  double theta_;
  std::map<std::string, std::vector<float>> weights_;
};

double largest_of(const Vector& values) {
  double largest = 0.0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

}  // namespace

TEST_CASE(
    "with rotary positions, a cache that slides is attention to a window, each key at its own position") {
  const std::map<std::string, double> thetas{{"smollm2", 100000.0}, {"llama-2", 10000.0}};
  for (const std::string family : {"smollm2", "llama-2"}) {
    CAPTURE(family);
    Model model = load(family, kWindow);
    const PlainLlama plain(model, thetas.at(family));
    const Tokens tokens = some_tokens(3 * kWindow);
    StaticKvCache cache(model, 2);  // the second row rests: it must not take its turns from the first
    model.next_logits(std::span(tokens).first(kWindow), cache);
    for (int length = kWindow + 1; length <= std::ssize(tokens); ++length) {
      const std::span<const int> text = std::span(tokens).first(static_cast<std::size_t>(length));
      const std::span<const int> fed = tokens_to_feed(text, kWindow, cache, 0, {});
      REQUIRE(fed.size() == 1);
      const std::span<const float> got = model.next_logits(fed, cache);
      if (length % 16 != 0 && length > kWindow + 2) continue;  // plain loops are slow
      CAPTURE(length);
      const Vector want = plain.logits(Tokens(text.begin(), text.end()));
      CHECK(difference("logits", got, std::span<const double>(want), want.size(), 1e-4 * largest_of(want)) ==
            "");
    }
    CHECK(cache.slid(0) == 2 * kWindow);
    CHECK(cache.slid(1) == 0);
  }
}

TEST_CASE("rows of a batch that have slid differently are as each would be alone, also after a copy") {
  Model model = load("smollm2", kWindow);
  const Tokens tokens = some_tokens(2 * kWindow);
  const std::span<const int> all(tokens);
  const auto slid_by = [&](StaticKvCache& cache, int row, int count) {
    std::vector<std::span<const int>> sequences(static_cast<std::size_t>(row));
    sequences.push_back(all.first(kWindow));
    model.next_logits(sequences, cache);
    cache.slide(row, count);
  };
  const auto alone = [&](int count) {
    StaticKvCache cache(model);
    slid_by(cache, 0, count);
    const std::span<const float> logits = model.next_logits(all.last(1), cache);
    return std::vector<float>(logits.begin(), logits.end());
  };
  StaticKvCache cache(model, 3);
  slid_by(cache, 0, 3);
  slid_by(cache, 1, 9);
  cache.copy_row(0, 2);
  const std::vector<std::span<const int>> fed(3, all.last(1));
  const std::span<const float> batch = model.next_logits(fed, cache);
  const std::vector<float> logits(batch.begin(), batch.end());
  const std::size_t size = logits.size() / 3;
  const std::vector<int> counts{3, 9, 3};
  for (std::size_t row = 0; row < counts.size(); ++row) {
    CAPTURE(row);
    const std::vector<float> want = alone(counts[row]);
    CHECK(difference("logits", std::span(logits).subspan(row * size, size), std::span<const float>(want),
                     size, tests_are_for_gpu() ? 1e-3 : 0.0) == "");
  }
}

TEST_CASE("a key is made for the position counted on, or for its place where positions have a table") {
  // Those of the first layer depend on the token and the position alone.
  const auto newest_key = [](Model& model, StaticKvCache& cache, int place) {
    const Tensor keys = cache.layer(0).keys.rows(0, 1);  // [1, n_kv_head, capacity, head_size]
    std::vector<float> all(static_cast<std::size_t>(keys.size())), key;
    model.device().copy_to_host(keys, all);
    for (std::int64_t head = 0; head < keys.dim(1); ++head) {
      const auto first = all.begin() + (head * keys.dim(2) + place) * keys.dim(3);
      key.insert(key.end(), first, first + keys.dim(3));
    }
    return key;
  };
  for (const std::string family :
       {"gpt2", "pythia", "neox-sequential", "olmo", "llama-2", "llama-3", "smollm2", "qwen2", "qwen3"}) {
    CAPTURE(family);
    Model small = load(family, kWindow), large = load(family, 4 * kWindow);
    const Tokens tokens = some_tokens(3 * kWindow);
    StaticKvCache slid(small), whole(large);
    for (std::size_t length = 1; length <= tokens.size(); ++length) {
      small.next_logits(tokens_to_feed(std::span(tokens).first(length), kWindow, slid, 0, {}), slid);
    }
    Tokens same_place(tokens.begin(), tokens.begin() + kWindow);
    same_place.back() = tokens.back();
    const Tokens& text = family == "gpt2" ? same_place : tokens;
    large.next_logits(text, whole);
    const std::vector<float> want = newest_key(large, whole, static_cast<int>(text.size()) - 1);
    CHECK(difference("key", newest_key(small, slid, kWindow - 1), want, want.size(),
                     tests_are_for_gpu() ? 1e-4 : 0.0) == "");
  }
}

TEST_CASE("an edit of logits gets the position of the new tokens in their text, also after a slide") {
  for (const std::string family : {"gpt2", "smollm2"}) {
    CAPTURE(family);
    Model model = load(family, kWindow);
    const Tokens text = some_tokens(3 * kWindow);  // all different, so that each stands at one position only
    StaticKvCache cache(model);
    std::vector<std::ptrdiff_t> places, counted;
    model.edit_logits([&](std::span<float>, const FedTokens& fed) {
      places.push_back(std::ranges::find(text, fed.tokens.front()) - text.begin());
      counted.push_back(static_cast<std::ptrdiff_t>(fed.position));
    });
    std::size_t length = 0;
    for (const std::size_t count : {kWindow, 1, 7, 2, 2, kWindow / 2, 1}) {
      const auto fed = static_cast<int>(count);
      if (cache.length(0) + fed > kWindow) cache.slide(0, cache.length(0) + fed - kWindow);
      model.next_logits(std::span(text).subspan(length, count), cache);
      length += count;
    }
    CHECK(counted == places);
    CHECK(cache.slid(0) == static_cast<int>(length) - kWindow);
  }
}

TEST_CASE("a cleared row begins at position 0 again, to the bit on a CPU") {
  Model model = load("llama-3", kWindow);
  const Tokens tokens = some_tokens(kWindow);
  const std::span<const float> logits = model.next_logits(tokens);
  const std::vector<float> want(logits.begin(), logits.end());
  StaticKvCache cache(model);
  model.next_logits(tokens, cache);
  cache.slide(0, 7);
  model.next_logits(Tokens{1, 2, 3}, cache);
  cache.truncate(0, 0);
  CHECK(difference("logits", model.next_logits(tokens, cache), std::span<const float>(want), want.size(),
                   tests_are_for_gpu() ? 1e-3 : 0.0) == "");
  CHECK(cache.slid(0) == 0);
}

}  // namespace staircase
