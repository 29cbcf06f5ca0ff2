// GPT-2 in plain loops, from token ids to logits (Vaswani et al. 2017, section 3; Radford et al. 2019).
#pragma once

#include <cmath>
#include <numeric>

#include "common/decoding/probabilities.h"
#include "common/measure/logit_comparison.h"
#include "common/model/adapter.h"
#include "common/model/plain_weights.h"

namespace staircase {

using Vector = std::vector<float>;
using Vectors = std::vector<Vector>;  ///< one for each token

inline Vector sum(Vector x, const Vector& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  return x;
}

/// x W + b, where y holds b at first. W [n_in, n_out] is stored row after row.
inline Vector linear(const Vector& x, const Vector& w, Vector y) {
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t o = 0; o < y.size(); ++o) y[o] += x[i] * w[i * y.size() + o];
  return y;
}

/// y + s B (A x), where s is alpha / r (Hu et al. 2021, section 4.1). A [rank, n_in] and B [n_out, rank] are
/// stored row after row.
inline Vector add_low_rank(Vector y, const Vector& x, const AdapterMatrix& change) {
  for (std::size_t k = 0; k < change.rank; ++k) {
    const float inside = std::inner_product(x.begin(), x.end(), change.a.begin() + k * x.size(), 0.0f);
    for (std::size_t o = 0; o < y.size(); ++o) y[o] += change.scale * change.b[o * change.rank + k] * inside;
  }
  return y;
}

/// x with mean 0 and variance 1, times `gain`, plus `bias` (Ba et al. 2016, section 3).
inline Vector layer_norm(Vector x, const Vector& gain, const Vector& bias, float epsilon) {
  const auto n = static_cast<float>(x.size());
  const float mean = std::accumulate(x.begin(), x.end(), 0.0f) / n;
  for (float& value : x) value -= mean;
  const float variance = std::inner_product(x.begin(), x.end(), x.begin(), 0.0f) / n;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = x[i] / std::sqrt(variance + epsilon) * gain[i] + bias[i];
  return x;
}

/// x times approximately the share of a normal distribution below x (Hendrycks and Gimpel 2016, section 2).
inline float gelu(float x) {
  return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

/// What a token reads from itself and all tokens before it, [width]. In each head, d features wide, this is
/// the mean of their values, weighted by softmax(query · key / √d).
inline Vector attend(const Vector& query, const Vectors& keys, const Vectors& values, int n_head) {
  const std::size_t d = query.size() / static_cast<std::size_t>(n_head);
  Vector attended(query.size());
  for (std::size_t head = 0; head < query.size(); head += d) {
    const auto own = query.begin() + head;
    Vector weights;
    for (const Vector& key : keys) {
      const float score = std::inner_product(own, own + d, key.begin() + head, 0.0f);
      weights.push_back(score / std::sqrt(static_cast<float>(d)));
    }
    weights = softmax(weights);
    for (std::size_t t = 0; t < values.size(); ++t)
      for (std::size_t i = 0; i < d; ++i) attended[head + i] += weights[t] * values[t][head + i];
  }
  return attended;
}

class PlainModel {
 public:
  PartTimes times;  ///< of all calls

  /// Throws Error for a model of another family.
  explicit PlainModel(const Model& model, Adapter adapter = {})
      : config_(model.config()), weights_(plain_weights(model, "gpt2")), adapter_(std::move(adapter)) {}

  /// Logits after the last of one or more tokens, [vocab_size].
  Vector logits(const std::vector<int>& tokens) {
    Vectors xs;
    for (int t = 0; t < std::ssize(tokens); ++t)
      xs.push_back(sum(row("embed_tokens", tokens[t]), row("embed_positions", t)));
    for (int l = 0; l < config_.n_layer; ++l) {
      const std::string block = "layers." + std::to_string(l) + ".";
      Vectors keys, values;
      for (Vector& x : xs)
        x = sum(x, attention(block + "self_attn.", norm(block + "input_layernorm", x), keys, values));
      for (Vector& x : xs) x = sum(x, mlp(block + "mlp.", norm(block + "post_attention_layernorm", x)));
    }
    return output_layer(norm("norm", xs.back()));
  }

 private:
  /// Appends the token's key and value to those of the tokens before it.
  Vector attention(const std::string& part, const Vector& x, Vectors& keys, Vectors& values) {
    const auto watch = times.of("attention");
    const Vector query = project(part + "q_proj", x);
    keys.push_back(project(part + "k_proj", x));
    values.push_back(project(part + "v_proj", x));
    return project(part + "o_proj", attend(query, keys, values, config_.n_head));
  }

  Vector mlp(const std::string& part, const Vector& x) {
    const auto watch = times.of("MLP");
    Vector hidden = project(part + "up_proj", x);
    for (float& number : hidden) number = gelu(number);
    return project(part + "down_proj", hidden);
  }

  Vector output_layer(const Vector& x) {
    const auto watch = times.of("output layer");
    Vector logits;
    for (int token = 0; token < config_.vocab_size; ++token) {
      const Vector own = row("lm_head", token);
      logits.push_back(std::inner_product(x.begin(), x.end(), own.begin(), 0.0f));
    }
    return logits;
  }

  Vector project(const std::string& name, const Vector& x) const {
    Vector y = linear(x, weights_.at(name + ".weight"), weights_.at(name + ".bias"));
    const auto change = adapter_.find(name);
    return change == adapter_.end() ? y : add_low_rank(y, x, change->second);
  }

  Vector norm(const std::string& name, const Vector& x) const {
    return layer_norm(x, weights_.at(name + ".weight"), weights_.at(name + ".bias"), config_.norm_epsilon);
  }

  Vector row(const std::string& table, int index) const {
    const auto first = weights_.at(table + ".weight").begin() + index * config_.n_embd;
    return {first, first + config_.n_embd};
  }

  ModelConfig config_;
  std::map<std::string, Vector> weights_;
  Adapter adapter_;
};

}  // namespace staircase
