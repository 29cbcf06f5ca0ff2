// GPT-2 in plain loops, from token ids to logits (Vaswani et al. 2017, section 3; Radford et al. 2019).
#pragma once

#include <cmath>
#include <numeric>

#include "common/decoding/probabilities.h"
#include "common/measure/logit_comparison.h"
#include "common/model/model.h"

namespace staircase {

using Vector = std::vector<float>;
using Vectors = std::vector<Vector>;  ///< one for each token

inline Vector sum(Vector x, const Vector& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  return x;
}

/// x W + b, where y comes in as b. The weights of W [n_in, n_out] lie row after row.
inline Vector linear(const Vector& x, const Vector& w, Vector y) {
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t o = 0; o < y.size(); ++o) y[o] += x[i] * w[i * y.size() + o];
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

/// x times the share of a normal distribution below x, nearly (Hendrycks and Gimpel 2016, section 2).
inline float gelu(float x) {
  return 0.5f * x * (1.0f + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

/// What the newest token takes from all so far, itself included, [width]. Each of `qkv` is a query, a key and
/// a value. In each head, d features wide, it is the mean of the values weighted by softmax(query · key /
/// √d).
inline Vector attend(const Vectors& qkv, int n_head) {
  const std::size_t width = qkv[0].size() / 3, d = width / static_cast<std::size_t>(n_head);
  Vector attended(width);
  for (std::size_t head = 0; head < width; head += d) {
    Vector weights;
    for (const Vector& other : qkv) {
      const auto query = qkv.back().begin() + head, key = other.begin() + width + head;
      weights.push_back(std::inner_product(query, query + d, key, 0.0f) / std::sqrt(static_cast<float>(d)));
    }
    weights = softmax(weights);
    for (std::size_t t = 0; t < qkv.size(); ++t) {
      for (std::size_t i = head; i < head + d; ++i) attended[i] += weights[t] * qkv[t][2 * width + i];
    }
  }
  return attended;
}

class PlainGpt2 {
 public:
  PartTimes times;  ///< of all calls

  /// Throws Error for a model of another family.
  explicit PlainGpt2(const Model& model) : config_(model.config()), weights_(model.stored_weights("gpt2")) {}

  /// Logits after the last of one or more tokens, [vocab_size].
  Vector logits(const std::vector<int>& tokens) {
    Vectors xs;
    for (int t = 0; t < std::ssize(tokens); ++t)
      xs.push_back(sum(row("wte.weight", tokens[t]), row("wpe.weight", t)));
    for (int l = 0; l < config_.n_layer; ++l) {
      const std::string block = "h." + std::to_string(l) + ".";
      Vectors qkv;
      for (Vector& x : xs) x = sum(x, attention(block, x, qkv));
      for (Vector& x : xs) x = sum(x, mlp(block, x));
    }
    return output_layer(norm("ln_f", xs.back()));
  }

 private:
  /// Adds to `qkv`, which has those of the tokens before.
  Vector attention(const std::string& block, const Vector& x, Vectors& qkv) {
    const auto watch = times.of("attention");
    qkv.push_back(affine(block + "attn.c_attn", norm(block + "ln_1", x)));
    return affine(block + "attn.c_proj", attend(qkv, config_.n_head));
  }

  Vector mlp(const std::string& block, const Vector& x) {
    const auto watch = times.of("MLP");
    Vector hidden = affine(block + "mlp.c_fc", norm(block + "ln_2", x));
    for (float& number : hidden) number = gelu(number);
    return affine(block + "mlp.c_proj", hidden);
  }

  Vector output_layer(const Vector& x) {
    const auto watch = times.of("output layer");
    Vector logits;
    for (int token = 0; token < config_.vocab_size; ++token) {
      const Vector own = row("wte.weight", token);
      logits.push_back(std::inner_product(x.begin(), x.end(), own.begin(), 0.0f));
    }
    return logits;
  }

  Vector affine(const std::string& name, const Vector& x) const {
    return linear(x, weights_.at(name + ".weight"), weights_.at(name + ".bias"));
  }

  Vector norm(const std::string& name, const Vector& x) const {
    return layer_norm(x, weights_.at(name + ".weight"), weights_.at(name + ".bias"), config_.norm_epsilon);
  }

  Vector row(const std::string& name, int index) const {
    const auto first = weights_.at(name).begin() + index * config_.n_embd;
    return {first, first + config_.n_embd};
  }

  ModelConfig config_;
  std::map<std::string, Vector> weights_;
};

}  // namespace staircase
