// The operations once more, as their formulas read: plain loops in double precision, with nothing in common
// with the kernels but the mathematics.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/device.h"

namespace staircase::naive {

using Values = std::vector<float>;
using Doubles = std::vector<double>;
using std::size_t;

/// `count` new tokens of a sequence, the first of them at position `start`.
struct Sequence {
  int start = 0;
  int count = 0;
};

inline double gelu(double x) {
  constexpr double kPi = 3.14159265358979323846;
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / kPi) * (x + 0.044715 * x * x * x)));
}

inline double gelu_erf(double x) {
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));  // 1 + erf(y) is erfc(-y), which has digits left below 0
}

inline double silu(double x) {
  return x / (1.0 + std::exp(-x));
}

/// x [rows, in], w [in, out], bias [out] or empty, before [rows, out]: what kAdd adds to.
inline Doubles linear(const Values& x, const Values& w, const Values& bias, size_t rows, size_t in,
                      size_t out, Epilogue epilogue = Epilogue::kStore, const Values& before = {}) {
  Doubles result(rows * out);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t o = 0; o < out; ++o) {
      double sum = bias.empty() ? 0.0 : static_cast<double>(bias[o]);
      for (size_t i = 0; i < in; ++i) {
        sum += static_cast<double>(x[r * in + i]) * static_cast<double>(w[i * out + o]);
      }
      if (epilogue == Epilogue::kGelu) sum = gelu(sum);
      if (epilogue == Epilogue::kGeluErf) sum = gelu_erf(sum);
      if (epilogue == Epilogue::kAdd) sum += static_cast<double>(before[r * out + o]);
      result[r * out + o] = sum;
    }
  }
  return result;
}

/// x [rows, width], weight and bias [width].
inline Doubles layer_norm(const Values& x, const Values& weight, const Values& bias, double epsilon,
                          size_t rows, size_t width) {
  Doubles result(rows * width);
  for (size_t r = 0; r < rows; ++r) {
    const float* const row = x.data() + r * width;
    double mean = 0.0, variance = 0.0;
    for (size_t i = 0; i < width; ++i) mean += static_cast<double>(row[i]) / static_cast<double>(width);
    for (size_t i = 0; i < width; ++i) {
      variance += std::pow(static_cast<double>(row[i]) - mean, 2.0) / static_cast<double>(width);
    }
    for (size_t i = 0; i < width; ++i) {
      const double normal = (static_cast<double>(row[i]) - mean) / std::sqrt(variance + epsilon);
      result[r * width + i] = normal * static_cast<double>(weight[i]) + static_cast<double>(bias[i]);
    }
  }
  return result;
}

/// gate and up [rows, inner].
inline Doubles gated(const Doubles& gate, const Doubles& up, Epilogue epilogue) {
  Doubles result(gate.size());
  for (size_t i = 0; i < gate.size(); ++i)
    result[i] = (epilogue == Epilogue::kGeluGate ? gelu(gate[i]) : silu(gate[i])) * up[i];
  return result;
}

/// x [rows, width], weight [width].
inline Doubles rms_norm(const Values& x, const Values& weight, double epsilon, size_t rows, size_t width) {
  Doubles result(rows * width);
  for (size_t r = 0; r < rows; ++r) {
    double squares = 0.0;
    for (size_t i = 0; i < width; ++i) squares += std::pow(static_cast<double>(x[r * width + i]), 2.0);
    for (size_t i = 0; i < width; ++i) {
      result[r * width + i] = static_cast<double>(x[r * width + i]) * static_cast<double>(weight[i]) /
                              std::sqrt(squares / static_cast<double>(width) + epsilon);
    }
  }
  return result;
}

/// The angle of pair i at a position, of `rotary` features.
inline double angle(int position, size_t i, size_t rotary, double theta) {
  return static_cast<double>(position) /
         std::pow(theta, 2.0 * static_cast<double>(i) / static_cast<double>(rotary));
}

/// A head at a position, turned: feature i of the first `rotary` makes a pair with feature i + rotary / 2.
inline Doubles turned(Doubles head, int position, size_t rotary, double theta) {
  const Doubles before = head;
  for (size_t i = 0; i < rotary / 2; ++i) {
    const double radians = angle(position, i, rotary, theta);
    const double a = before[i], b = before[i + rotary / 2];
    head[i] = a * std::cos(radians) - b * std::sin(radians);
    head[i + rotary / 2] = b * std::cos(radians) + a * std::sin(radians);
  }
  return head;
}

/// queries [n_tokens, width], keys and values [n_sequences, n_head / group, capacity, head_size]. A query
/// sees its own position and the window - 1 before it.
inline Doubles attention(const std::vector<Sequence>& sequences, const Values& queries, const Values& keys,
                         const Values& values, size_t capacity, size_t width, size_t n_head, size_t group = 1,
                         size_t window = kNoWindow) {
  const size_t head_size = width / n_head, n_kv_head = n_head / group;
  Doubles result(queries.size());
  size_t token = 0;
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int q = 0; q < sequences[s].count; ++q, ++token) {
      const auto seen = static_cast<size_t>(sequences[s].start + q + 1);
      for (size_t head = 0; head < n_head; ++head) {
        const size_t first = head * head_size, cache = (s * n_kv_head + head / group) * capacity * head_size;
        Doubles scores(seen);
        for (size_t p = 0; p < seen; ++p) {
          if (p + window < seen) {
            scores[p] = -INFINITY;
            continue;
          }
          for (size_t i = 0; i < head_size; ++i) {
            scores[p] += static_cast<double>(queries[token * width + first + i]) *
                         static_cast<double>(keys[cache + p * head_size + i]);
          }
          scores[p] /= std::sqrt(static_cast<double>(head_size));
        }
        const double largest = *std::max_element(scores.begin(), scores.end());
        double sum = 0.0;
        for (double& score : scores) sum += score = std::exp(score - largest);
        for (size_t p = 0; p < seen; ++p) {
          for (size_t i = 0; i < head_size; ++i) {
            result[token * width + first + i] +=
                scores[p] / sum * static_cast<double>(values[cache + p * head_size + i]);
          }
        }
      }
    }
  }
  return result;
}

/// What query_key_value makes of its product, in three parts.
struct Parts {
  Doubles queries;  ///< [n_tokens, width]
  Doubles keys;     ///< [n_sequences, n_head, capacity, head_size], and so `values`
  Doubles values;
};

/// product [n_tokens, 3 · width]; `untouched` is the cache's content where no new token is.
inline Parts split(const std::vector<Sequence>& sequences, const Doubles& product, size_t capacity,
                   size_t width, size_t n_head, double untouched) {
  const size_t head_size = width / n_head;
  Parts parts;
  parts.keys = parts.values = Doubles(sequences.size() * capacity * width, untouched);
  const double* row = product.data();
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int i = 0; i < sequences[s].count; ++i, row += 3 * width) {
      parts.queries.insert(parts.queries.end(), row, row + width);
      for (size_t head = 0; head < n_head; ++head) {
        const auto position = static_cast<size_t>(sequences[s].start + i);
        const size_t place = ((s * n_head + head) * capacity + position) * head_size;
        std::copy_n(row + width + head * head_size, head_size, parts.keys.data() + place);
        std::copy_n(row + 2 * width + head * head_size, head_size, parts.values.data() + place);
      }
    }
  }
  return parts;
}

}  // namespace staircase::naive
