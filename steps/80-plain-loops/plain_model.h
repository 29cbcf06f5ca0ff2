// GPT-2 in plain loops, for a text of one token (Radford et al. 2019).
#pragma once

#include <cmath>
#include <numeric>

#include "common/measure/logit_comparison.h"
#include "common/model/plain_weights.h"

namespace staircase {

using Vector = std::vector<float>;

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

class PlainModel {
 public:
  /// Throws Error for a model of another family.
  explicit PlainModel(const Model& model) : config_(model.config()), weights_(plain_weights(model, "gpt2")) {}

  /// Logits after a text of one token, [vocab_size].
  Vector logits(int token) const {
    Vector x = sum(row("embed_tokens", token), row("embed_positions", 0));
    for (int l = 0; l < config_.n_layer; ++l) {
      const std::string block = "layers." + std::to_string(l) + ".";
      x = sum(x, attention(block + "self_attn.", norm(block + "input_layernorm", x)));
      x = sum(x, mlp(block + "mlp.", norm(block + "post_attention_layernorm", x)));
    }
    return output_layer(norm("norm", x));
  }

 private:
  Vector attention(const std::string& part, const Vector& x) const {
    const Vector value = project(part + "v_proj", x);
    return project(part + "o_proj", value);  // a token alone attends only to itself
  }

  Vector mlp(const std::string& part, const Vector& x) const {
    Vector hidden = project(part + "up_proj", x);
    for (float& number : hidden) number = gelu(number);
    return project(part + "down_proj", hidden);
  }

  Vector output_layer(const Vector& x) const {
    Vector logits;
    for (int token = 0; token < config_.vocab_size; ++token) {
      const Vector own = row("lm_head", token);
      logits.push_back(std::inner_product(x.begin(), x.end(), own.begin(), 0.0f));
    }
    return logits;
  }

  Vector project(const std::string& name, const Vector& x) const {
    return linear(x, weights_.at(name + ".weight"), weights_.at(name + ".bias"));
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
};

}  // namespace staircase
