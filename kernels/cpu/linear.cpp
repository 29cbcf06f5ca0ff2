// linear and query_key_value: out = epilogue(norm(x) W + b); activate: out = epilogue(x).
//
// x [rows, in], W in panels [out / 64, in, 64], out [rows, out]. 2 · rows · in · out operations; the weights
// are read once, 4 bytes each or less, and x, which is small, stays in the cache. So memory bandwidth limits
// one row, and arithmetic limits a few dozen rows or more. product_shares.h divides a product among threads.
//
// Weights in bfloat16 are multiplied by x in bfloat16, because processors have an instruction for that, with
// sums in float32 (bfloat16_tile.h). x is rounded for every number of rows, even if memory is the limit: a
// token must get the same bits alone and in a prompt of 512. It is also rounded on every processor, with or
// without the instruction, so a model is equally good everywhere. For the same reasons, weights in 8 or 4
// bits are multiplied by x in 8 bits (int8_int4_tile.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/contrib/math/math-inl.h>

#include <functional>

#include "kernels/cpu/int8_int4-inl.h"
#include "kernels/cpu/product_shares.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {

/// Whether products of bfloat16 weights read x as bfloat16. Otherwise they read it as float32.
bool multiplies_bfloat16() {
  return kAvx512 && has_bfloat16_tile();
}

/// Rounds the rows first .. last - 1 of x to bfloat16, unless they are bfloat16 already. `out` is bfloat16 or
/// float32. Its rows may be longer than those of x; the rest is filled with zeros.
HWY_ATTR void round_to_bfloat16(const Tensor& x, std::int64_t first, std::int64_t last, const Tensor& out) {
  const std::int64_t width = out.dim(1), in = x.dim(1);
  for (std::int64_t row = first; row < last; ++row) {
    const auto fill = [&](const auto* values, auto* rounded, const auto& round) HWY_ATTR {
      std::transform(values, values + in, rounded, round);
      std::fill(rounded + in, rounded + width, 0);
    };
    if (x.dtype() == DType::kBFloat16) {
      fill(x.data<std::uint16_t>() + row * in, out.data<std::uint16_t>() + row * width, std::identity());
    } else if (out.dtype() == DType::kBFloat16) {
      fill(x.data<float>() + row * in, out.data<std::uint16_t>() + row * width, bfloat16_from_float32);
    } else {
      fill(x.data<float>() + row * in, out.data<float>() + row * width,
           [](float value) { return float32_from_bfloat16(bfloat16_from_float32(value)); });
    }
  }
}

/// Quantizes the rows first .. last - 1 of x to groups of 8 bits, for weights in panels of type Panel. `out`
/// [rows, bytes] has room for them.
template <typename Panel>
HWY_ATTR void round_to_int8(const Tensor& x, std::int64_t first, std::int64_t last, const Tensor& out) {
  const std::int64_t depth = x.dim(1), groups = groups_of<Panel>(depth);
  for (std::int64_t row = first; row < last; ++row) {
    quantize_row(x.data<float>() + row * depth, depth, out.data<typename Panel::Row>() + row * groups);
  }
}

/// Calls round_to_int8 for weights of this type.
HWY_ATTR void round_to_integers(DType weights, const Tensor& x, std::int64_t first, std::int64_t last,
                                const Tensor& out) {
  with_panels(weights, nullptr,
              [&]<typename Panel>(const Panel*) HWY_ATTR { round_to_int8<Panel>(x, first, last, out); });
}

/// multiply_panels for any types of x and the weights. `store` receives row numbers counted from the first
/// row of the piece.
template <typename Store>
HWY_INLINE void multiply_weight(const Tensor& x, const Weight& weight, const ProductPiece& piece,
                                const Store& store) {
  const std::int64_t first = piece.halves.first, last = piece.halves.last;
  const std::int64_t row = piece.rows.first, rows = piece.rows.last - row;
  if (is_quantized(weight.packed.dtype())) {
    with_panels(weight.packed.dtype(), weight.packed.data<void>(),
                [&]<typename Panel>(const Panel* panels) HWY_ATTR {
                  const std::int64_t groups = groups_of<Panel>(weight.in_features);
                  multiply_int8_panels(x.data<typename Panel::Row>() + row * groups, rows, groups, panels,
                                       first, last, store);
                });
    return;
  }
  const std::int64_t depth = weight.packed.dim(1);
  if (x.dtype() == DType::kBFloat16) {
    multiply_panels(x.data<std::uint16_t>() + row * depth, rows, depth, weight.packed.data<std::uint16_t>(),
                    depth * kPanel, depth, first, last, store);
    return;
  }
  with_elements(weight.packed.dtype(), weight.packed.data<void>(), [&](const auto* panels) HWY_ATTR {
    multiply_panels(x.data<float>() + row * depth, rows, depth, panels, depth * kPanel, depth, first, last,
                    store);
  });
}

/// gelu(x) = x/2 · (1 + tanh(u)) = x / (1 + exp(-2u)) with u = sqrt(2/π) (x + 0.044715 x³).
HWY_INLINE hn::Vec<Floats> gelu(hn::Vec<Floats> x) {
  const Floats d;
  const auto cubic = hn::MulAdd(hn::Mul(hn::Set(d, 0.044715f), hn::Mul(x, x)), x, x);
  // Highway's Exp is defined up to 104. From 80 on, gelu is 0 in float32.
  const auto exponential =
      hn::Exp(d, hn::Min(hn::Mul(hn::Set(d, -2.0f * 0.7978845608f), cubic), hn::Set(d, 80.0f)));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), exponential));
}

/// gelu(x) = x Φ(x), Φ being the normal distribution. Below 0, Φ is exp(-x²/2) times a function smooth enough
/// for a polynomial in 1 / (1 + 0.35 |x|). The polynomial was fitted for the least relative error: 3e-8 down
/// to -14.5, where Φ is 0 in float32. Above 0, Φ(x) = 1 - Φ(-x).
HWY_INLINE hn::Vec<Floats> gelu_erf(hn::Vec<Floats> x) {
  const Floats d;
  const auto one = hn::Set(d, 1.0f);
  const auto size = hn::Min(hn::Abs(x), hn::Set(d, 14.5f));
  const auto t = hn::Div(one, hn::MulAdd(size, hn::Set(d, 0.35f), one));
  auto sum = hn::Set(d, -0.029158029705f);
#pragma GCC unroll 8
  for (const float factor : {0.144031614065f, -0.255840390921f, 0.159321248531f, -0.0232133921236f,
                             0.105552926660f, 0.119821183383f, 0.139863535762f, 0.139621302485f}) {
    sum = hn::MulAdd(sum, t, hn::Set(d, factor));
  }
  const auto exponential = hn::Exp(d, hn::Mul(hn::Set(d, -0.5f), hn::Mul(size, size)));
  const auto tail = hn::Mul(hn::Mul(sum, t), exponential);
  return hn::Mul(x, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail)));
}

/// silu(x) = x / (1 + exp(-x)).
HWY_INLINE hn::Vec<Floats> silu(hn::Vec<Floats> x) {
  const Floats d;
  // Highway's Exp is defined up to 104, where it is infinite in float32.
  const auto exponential = hn::Exp(d, hn::Min(hn::Neg(x), hn::Set(d, 104.0f)));
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), exponential));
}

/// Adds the bias to `count` products, applies the epilogue and stores the results.
HWY_NOINLINE void finish(const float* products, std::int64_t count, const float* bias, Epilogue epilogue,
                         float* out) {
  const Floats d;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    auto value = hn::Load(d, products + i);
    if (bias != nullptr) value = hn::Add(value, hn::LoadU(d, bias + i));
    if (epilogue == Epilogue::kGelu) value = gelu(value);
    if (epilogue == Epilogue::kGeluErf) value = gelu_erf(value);
    if (epilogue == Epilogue::kAdd) value = hn::Add(value, hn::LoadU(d, out + i));
    hn::StoreU(value, d, out + i);
  }
  if (i == count) return;
  // If the width is not a multiple of a vector, the last columns are computed on a copy.
  HWY_ALIGN float in_bias[kLanes] = {}, in_out[kLanes] = {};
  for (std::int64_t j = i; j < count; ++j) {
    if (bias != nullptr) in_bias[j - i] = bias[j];
    in_out[j - i] = out[j];
  }
  finish(products + i, kLanes, in_bias, epilogue, in_out);
  std::copy_n(in_out, count - i, out + i);
}

/// Adds the bias, applies the gate and stores `count` results. The products come in groups of kGateColumns of
/// gate and of up; the last group may give fewer results.
HWY_NOINLINE void finish_gated(const float* products, std::int64_t count, const float* bias,
                               Epilogue epilogue, float* out) {
  const Floats d;
  const auto load = [&](std::int64_t i) HWY_ATTR {
    const auto value = hn::Load(d, products + i);
    return bias == nullptr ? value : hn::Add(value, hn::LoadU(d, bias + i));
  };
  HWY_ALIGN float last[kGateColumns];
  for (; count > 0; count -= kGateColumns) {
    // The last group must not write beyond the row.
    float* const turn = count < kGateColumns ? last : out;
    for (std::int64_t i = 0; i < kGateColumns; i += kLanes) {
      const auto gate = load(i);
      const auto opened = epilogue == Epilogue::kGeluGate ? gelu(gate) : silu(gate);
      hn::StoreU(hn::Mul(opened, load(kGateColumns + i)), d, turn + i);
    }
    if (turn == last) {
      std::copy_n(last, count, out);
      return;
    }
    out += kGateColumns;
    products += 2 * kGateColumns;
    if (bias != nullptr) bias += 2 * kGateColumns;
  }
}

HWY_ATTR void linear_piece(const Tensor& x, const Weight& weight, const float* bias, Epilogue epilogue,
                           const Tensor& out, const ProductPiece& piece) {
  static_assert(kHalfPanel % (2 * kGateColumns) == 0, "a half of a panel has whole turns");
  const std::int64_t width = out.dim(1);
  const std::int64_t columns_of_result = is_gated(epilogue) ? 2 : 1;
  const auto multiply = [&](const auto& finish_columns) HWY_ATTR {
    multiply_weight(
        x, weight, piece,
        [=](std::int64_t row, std::int64_t column, std::int64_t count, const float* products) HWY_ATTR {
          const std::int64_t first = column / columns_of_result;
          finish_columns(products, std::min(count / columns_of_result, width - first),
                         bias == nullptr ? nullptr : bias + column, (piece.rows.first + row) * width + first);
        });
  };
  const auto finish_any = [=](const float* products, std::int64_t count, const float* biases, float* to)
                              HWY_ATTR {
                                if (is_gated(epilogue)) {
                                  finish_gated(products, count, biases, epilogue, to);
                                } else {
                                  finish(products, count, biases, epilogue, to);
                                }
                              };
  if (out.dtype() == DType::kBFloat16) {
    multiply([=, to = out.data<hwy::bfloat16_t>()](const float* products, std::int64_t count,
                                                   const float* biases, std::int64_t place) HWY_ATTR {
      HWY_ALIGN float wide[kPanel];
      finish_any(products, count, biases, wide);
      narrow(wide, count, to + place);
    });
  } else {
    multiply([=, to = out.data<float>()](const float* products, std::int64_t count, const float* biases,
                                         std::int64_t place)
                 HWY_ATTR { finish_any(products, count, biases, to + place); });
  }
}

/// Computes row `row` of `activate`, kPanel columns at a time, on an aligned copy.
HWY_ATTR void activate_row(const Tensor& x, std::int64_t row, Epilogue epilogue, const Tensor& out) {
  const std::int64_t columns = x.dim(1), width = out.dim(1), of_result = is_gated(epilogue) ? 2 : 1;
  HWY_ALIGN float products[kPanel], results[kPanel];
  for (std::int64_t column = 0; column < columns; column += kPanel) {
    const std::int64_t first = column / of_result, count = std::min(kPanel / of_result, width - first);
    std::copy_n(x.data<float>() + row * columns + column, std::min(kPanel, columns - column), products);
    if (is_gated(epilogue)) {
      finish_gated(products, count, nullptr, epilogue, results);
    } else {
      finish(products, count, nullptr, epilogue, results);
    }
    if (out.dtype() == DType::kBFloat16) {
      narrow(results, count, out.data<hwy::bfloat16_t>() + row * width + first);
    } else {
      narrow(results, count, out.data<float>() + row * width + first);
    }
  }
}

/// Computes one piece of query_key_value. Keys and values of neighbouring heads are head_stride elements
/// apart.
HWY_ATTR void query_key_value_piece(const Tensor& x, const Weight& weight, const float* bias,
                                    const std::vector<TokenPlaces>& places, const KeysValues& keys_values,
                                    const ProductPiece& piece) {
  const std::int64_t width = weight.out_features / 3, head_size = keys_values.keys.dim(3),
                     head_stride = keys_values.keys.dim(2) * head_size;
  const TokenPlaces* const places_of_piece = places.data() + piece.rows.first;
  // Finishes `count` products and stores them in a head's query, key or value.
  const auto finish_piece = [&](const float* products, std::int64_t count, const float* piece_bias,
                                bool aligned, float* out) HWY_ATTR {
    if (aligned) {
      finish(products, count, piece_bias, Epilogue::kStore, out);
    } else {
      for (std::int64_t j = 0; j < count; ++j) out[j] = products[j] + piece_bias[j];
    }
  };
  multiply_weight(
      x, weight, piece,
      [&](std::int64_t row, std::int64_t column, std::int64_t count, const float* products) HWY_ATTR {
        const TokenPlaces& place = places_of_piece[row];
        const std::int64_t end = std::min(column + count, 3 * width);
        // Head by head, because a piece of the row may cross from one head to the next, or between q, k and
        // v.
        for (std::int64_t i = column; i < end;) {
          const std::int64_t part = i / width, head = i % width / head_size, offset = i % head_size;
          const std::int64_t piece = std::min(end - i, head_size - offset);
          const float* const product = products + (i - column);
          const bool aligned = (i - column) % kLanes == 0;
          if (part == 0) {
            finish_piece(product, piece, bias + i, aligned, place.query + head * head_size + offset);
          } else {
            const Tensor& to = part == 1 ? keys_values.keys : keys_values.values;
            HWY_ALIGN float wide[kPanel];
            finish_piece(product, piece, bias + i, aligned, wide);
            with_elements(to.dtype(), to.data<void>(), [&](auto* elements) HWY_ATTR {
              narrow(wide, piece, elements + place.key_value + head * head_stride + offset);
            });
          }
          i += piece;
        }
      });
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {
namespace {

/// Calls body(piece) for all pieces of a product with `rows` rows.
template <typename Body>
void share_product(ThreadTeam& team, std::int64_t rows, const Weight& weight, const Body& body) {
  const ProductShares shares(rows, weight.out_features);
  parallel_ranges(team, shares.count(), [&](std::int64_t first, std::int64_t last) {
    shares.for_each_piece({first, last}, body);
  });
}

}  // namespace

HWY_EXPORT(multiplies_bfloat16);
HWY_EXPORT(round_to_bfloat16);
HWY_EXPORT(round_to_integers);
HWY_EXPORT(linear_piece);
HWY_EXPORT(activate_row);
HWY_EXPORT(query_key_value_piece);

DType CpuDevice::operand_dtype(std::int64_t, DType weights) const {
  const bool halves = weights == DType::kBFloat16 && HWY_DYNAMIC_DISPATCH(multiplies_bfloat16)();
  return halves ? DType::kBFloat16 : DType::kFloat32;
}

Tensor CpuDevice::as_operand(const Tensor& x, const Norm& norm, const Weight& weight) {
  const DType weights = weight.packed.dtype();
  const std::int64_t rows = x.dim(0);
  DType dtype = weights;
  std::int64_t width = weight.packed.dim(1);
  if (is_quantized(weights)) {
    dtype = DType::kInt8;
    width = with_panels(weights, nullptr, [&]<typename Panel>(const Panel*) {
      return groups_of<Panel>(weight.in_features) * std::int64_t{sizeof(typename Panel::Row)};
    });
  } else if (operand_dtype(rows, weights) != weights) {
    dtype = DType::kFloat32;
  }
  const bool has_norm = norm.kind != NormKind::kNone;
  const bool is_rounded = x.dtype() == weights && x.dim(1) == width;
  const bool rounds = is_quantized(weights) || (weights == DType::kBFloat16 && !is_rounded);
  if (!has_norm && !rounds) return x;

  Tensor normed = x, operand;
  if (has_norm) {
    grown(normed_, x.size());
    normed = normed_.reshaped(x.shape());
  }
  if (rounds) {
    const auto bytes = static_cast<std::int64_t>(bytes_of(dtype, {rows, width}));
    float* const memory = scratch(divide_up(bytes, sizeof(float)));
    operand =
        Tensor(dtype, {rows, width}, std::shared_ptr<void>(memory, [](void*) {}));  // the device owns it
  }
  each_few_rows(x, [&](IndexRange few) {
    for (std::int64_t r = few.first; has_norm && r < few.last; ++r) {
      normalize_row(x.data<float>() + r * x.dim(1), norm, x.dim(1), normed.data<float>() + r * x.dim(1));
    }
    if (is_quantized(weights)) {
      HWY_DYNAMIC_DISPATCH(round_to_integers)(weights, normed, few.first, few.last, operand);
    } else if (rounds) {
      HWY_DYNAMIC_DISPATCH(round_to_bfloat16)(normed, few.first, few.last, operand);
    }
  });
  return rounds ? operand : normed;
}

void CpuDevice::linear(const Tensor& x, const Norm& norm, const Weight& weight, const Tensor& bias,
                       Epilogue epilogue, Tensor& out) {
  const Tensor operand = as_operand(x, norm, weight);
  share_product(team_, x.dim(0), weight, [&](const ProductPiece& piece) {
    HWY_DYNAMIC_DISPATCH(linear_piece)(operand, weight, bias.data<float>(), epilogue, out, piece);
  });
}

void CpuDevice::linear_groups(const Tensor& x, std::span<const std::int64_t> firsts,
                              std::span<const Weight* const> weights, Epilogue epilogue, Tensor& out) {
  const Tensor operand = as_operand(x, {}, *weights[0]);
  std::vector<std::size_t> groups;  // the groups with at least one row
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (firsts[i + 1] > firsts[i]) groups.push_back(i);
  }
  // The halves of panels of all matrices are numbered in one sequence, so each thread is started only once.
  const std::int64_t halves = divide_up(weights[0]->out_features, kHalfPanel);
  parallel_ranges(team_, std::ssize(groups) * halves, [&](std::int64_t first, std::int64_t last) {
    while (first < last) {
      const std::int64_t begin = first / halves * halves, end = std::min(last, begin + halves);
      const std::size_t i = groups[static_cast<std::size_t>(first / halves)];
      const std::int64_t row = firsts[i], rows = firsts[i + 1] - row;
      HWY_DYNAMIC_DISPATCH(linear_piece)
      (operand.rows(row, rows), *weights[i], nullptr, epilogue, out.rows(row, rows),
       ProductPiece{{0, rows}, {first - begin, end - begin}});
      first = end;
    }
  });
}

void CpuDevice::activate(const Tensor& x, Epilogue epilogue, Tensor& out) {
  each_few_rows(x, [&](IndexRange rows) {
    for (std::int64_t r = rows.first; r < rows.last; ++r) {
      HWY_DYNAMIC_DISPATCH(activate_row)(x, r, epilogue, out);
    }
  });
}

void CpuDevice::query_key_value(const Batch& batch, const Tensor& x, const Norm& norm, const Weight& weight,
                                const Tensor& bias, Tensor& queries, KeysValues& keys_values) {
  if (is_quantized(keys_values.keys.dtype())) {  // a head is quantized as a whole, once it is complete
    const Shape shape{x.dim(0), weight.out_features};
    grown(projected_, shape[0] * shape[1]);
    Tensor projected = projected_.reshaped(shape);
    linear(x, norm, weight, bias, Epilogue::kStore, projected);
    return split_heads(batch, projected, {}, queries, keys_values);
  }
  const Tensor operand = as_operand(x, norm, weight);
  const std::vector<TokenPlaces> places = places_of(batch, queries, keys_values);
  share_product(team_, x.dim(0), weight, [&](const ProductPiece& piece) {
    HWY_DYNAMIC_DISPATCH(query_key_value_piece)
    (operand, weight, bias.data<float>(), places, keys_values, piece);
  });
}

}  // namespace staircase
#endif  // HWY_ONCE
