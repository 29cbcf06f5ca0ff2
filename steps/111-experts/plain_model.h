// Qwen3 with experts in plain loops, from token ids to logits (Yang et al. 2025, section 2).
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/decoding/probabilities.h"
#include "common/measure/logit_comparison.h"
#include "common/model/plain_weights.h"

namespace staircase {

using Vector = std::vector<float>;
using Vectors = std::vector<Vector>;  ///< one for each token

inline Vector sum(Vector x, const Vector& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  return x;
}

/// x W. W [n_in, n_out] is stored row after row.
inline Vector linear(const Vector& x, const Vector& w) {
  Vector y(w.size() / x.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t o = 0; o < y.size(); ++o) y[o] += x[i] * w[i * y.size() + o];
  return y;
}

/// x with a mean square of 1, times `gain` (Zhang and Sennrich 2019, section 4).
inline Vector rms_norm(Vector x, const Vector& gain, float epsilon) {
  const float square = std::inner_product(x.begin(), x.end(), x.begin(), 0.0f) / static_cast<float>(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= gain[i] / std::sqrt(square + epsilon);
  return x;
}

/// Normalizes each head by itself; a head has as many features as `gain` (Henry et al. 2020, section 3).
inline Vector norm_heads(const Vector& x, const Vector& gain, float epsilon) {
  Vector normed;
  for (auto head = x.begin(); head != x.end(); head += std::ssize(gain)) {
    const Vector one = rms_norm({head, head + std::ssize(gain)}, gain, epsilon);
    normed.insert(normed.end(), one.begin(), one.end());
  }
  return normed;
}

/// x times the logistic function of x (Elfwing et al. 2017, section 2).
inline float silu(float x) {
  return x / (1.0f + std::exp(-x));
}

/// Rotates the pairs of features (i, i + n/2) of each head's first n by position · theta^(-2i / n) radians
/// (Su et al. 2021, section 3.4.2; the pairs as in Hugging Face transformers).
inline Vector rotate(Vector x, int position, int head_size, int n, double theta) {
  for (auto head = x.begin(); head != x.end(); head += head_size) {
    for (int i = 0; i < n / 2; ++i) {
      const double angle = position * std::pow(theta, -2.0 * i / n);
      const auto cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
      const float a = head[i], b = head[i + n / 2];
      head[i] = a * cosine - b * sine;
      head[i + n / 2] = a * sine + b * cosine;
    }
  }
  return x;
}

/// What a token reads from itself and all tokens before it, [n_head · d]. In each head, d features wide, this
/// is the mean of their values, weighted by softmax(query · key / √d). Neighbouring query heads share one
/// head of keys and values (Ainslie et al. 2023, section 2.2).
inline Vector attend(const Vector& query, const Vectors& keys, const Vectors& values, int n_head) {
  const std::size_t d = query.size() / static_cast<std::size_t>(n_head);
  const std::size_t group = query.size() / keys[0].size();
  Vector attended(query.size());
  for (std::size_t head = 0; head < query.size(); head += d) {
    const std::size_t shared = head / d / group * d;
    const auto own = query.begin() + head;
    Vector weights;
    for (const Vector& key : keys) {
      const float score = std::inner_product(own, own + d, key.begin() + shared, 0.0f);
      weights.push_back(score / std::sqrt(static_cast<float>(d)));
    }
    weights = softmax(weights);
    for (std::size_t t = 0; t < values.size(); ++t)
      for (std::size_t i = 0; i < d; ++i) attended[head + i] += weights[t] * values[t][shared + i];
  }
  return attended;
}

using Shares = std::map<int, float>;  ///< of the experts that a token chose, by their numbers

/// The k experts with the largest scores; of equal ones the first. Their shares are their softmax
/// probabilities, divided by the sum of these k (Shazeer et al. 2017, section 2.1; here without noise).
inline Shares route(const Vector& scores, int k) {
  Vector rest = softmax(scores);
  Shares shares;
  float sum = 0.0f;
  for (; k > 0; --k) {
    const auto best = std::ranges::max_element(rest);
    shares[static_cast<int>(best - rest.begin())] = *best;
    sum += std::exchange(*best, -1.0f);
  }
  for (auto& [expert, share] : shares) share /= sum;
  return shares;
}

class PlainModel {
 public:
  PartTimes times;  ///< of all calls

  /// Throws Error for a model of another family.
  explicit PlainModel(const Model& model)
      : config_(model.config()), weights_(plain_weights(model, "qwen3_moe")) {}

  /// Logits after the last of one or more tokens, [vocab_size].
  Vector logits(const std::vector<int>& tokens) {
    Vectors xs;
    for (const int token : tokens) xs.push_back(row("embed_tokens", token));
    for (int l = 0; l < config_.n_layer; ++l) {
      const std::string block = "layers." + std::to_string(l) + ".";
      Vectors keys, values;
      for (Vector& x : xs)
        x = sum(x, attention(block + "self_attn.", norm(block + "input_layernorm", x), keys, values));
      for (Vector& x : xs) x = sum(x, experts(block + "mlp.", norm(block + "post_attention_layernorm", x)));
    }
    return output_layer(norm("norm", xs.back()));
  }

 private:
  /// Appends the token's key and value to those of the tokens before it.
  Vector attention(const std::string& part, const Vector& x, Vectors& keys, Vectors& values) {
    const auto watch = times.of("attention");
    const int position = static_cast<int>(keys.size());
    const Vector query = norm_each_head(part + "q_norm", project(part + "q_proj", x));
    const Vector key = norm_each_head(part + "k_norm", project(part + "k_proj", x));
    keys.push_back(rotated(key, position));
    values.push_back(project(part + "v_proj", x));
    return project(part + "o_proj", attend(rotated(query, position), keys, values, config_.n_head));
  }

  /// The sum of the chosen experts' results, each times its share. A block without a router has one MLP.
  Vector experts(const std::string& part, const Vector& x) {
    if (!weights_.contains(part + "gate.weight")) return mlp(part, x);
    Vector y(x.size());
    for (const auto& [expert, share] : route(project(part + "gate", x), config_.experts_per_token)) {
      const Vector own = mlp(part + "experts." + std::to_string(expert) + ".", x);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] += share * own[i];
    }
    return y;
  }

  Vector mlp(const std::string& part, const Vector& x) {
    const auto watch = times.of("MLP");
    const Vector gate = project(part + "gate_proj", x);
    Vector hidden = project(part + "up_proj", x);
    for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i] *= silu(gate[i]);
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

  Vector rotated(const Vector& x, int position) const {
    return rotate(x, position, config_.head_size, config_.rotary_size, config_.rope_theta);
  }

  Vector project(const std::string& name, const Vector& x) const {
    return linear(x, weights_.at(name + ".weight"));
  }

  Vector norm(const std::string& name, const Vector& x) const {
    return rms_norm(x, weights_.at(name + ".weight"), config_.norm_epsilon);
  }

  Vector norm_each_head(const std::string& name, const Vector& x) const {
    return norm_heads(x, weights_.at(name + ".weight"), config_.norm_epsilon);
  }

  Vector row(const std::string& table, int index) const {
    const auto first = weights_.at(table + ".weight").begin() + index * config_.n_embd;
    return {first, first + config_.n_embd};
  }

  ModelConfig config_;
  std::map<std::string, Vector> weights_;
};

}  // namespace staircase
