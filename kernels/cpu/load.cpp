// load and load_weight: convert the bytes of a file to tensors. Each element is read and written once.
//
// A weight matrix is stored in panels, packed[out / 64][in][out % 64] (in bfloat16 in pairs, see
// cpu_device.h), and converted from its file's format to the requested one at the same time. The threads
// divide the panels as `linear` will, so on a NUMA machine each panel is near the thread that will read it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/load.cpp"
#include <hwy/foreach_target.h>
// foreach_target.h must precede this: it sets the target.
#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "kernels/cpu/quantize-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {

/// Widens `count` values from `source`, which need not be aligned.
template <typename Stored>
HWY_ATTR void widen_bytes(const std::byte* source, std::int64_t count, float* out) {
  const Floats d;
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(Stored));
  HWY_ALIGN Stored buffer[kLanes] = {};
  const auto widened = [&](std::size_t bytes) HWY_ATTR {
    std::memcpy(buffer, source, bytes);
    const auto value = load_wide(buffer);
    if constexpr (std::is_same_v<Stored, hwy::float16_t>) {
      // Without an instruction for this, Highway converts infinity and NaN to finite numbers from 65536 on:
      // the fraction is right, but the exponent is wrong.
      const auto beyond = hn::Ge(hn::Abs(value), hn::Set(d, 65536.0f));
      return hn::IfThenElse(beyond, hn::Or(value, hn::Inf(d)), value);
    } else {
      return value;
    }
  };
  for (; count >= kLanes; count -= kLanes, source += kLanes * kBytes, out += kLanes) {
    hn::StoreU(widened(sizeof buffer), d, out);
  }
  if (count == 0) return;
  HWY_ALIGN float wide[kLanes];
  hn::Store(widened(static_cast<std::size_t>(count * kBytes)), d, wide);
  std::copy_n(wide, count, out);
}

/// Converts `count` elements of the array from element `first` on to float32.
HWY_ATTR void to_float32(const HostArray& array, std::int64_t first, std::int64_t count, float* out) {
  const auto* const source =
      static_cast<const std::byte*>(array.data) + first * static_cast<std::int64_t>(size_of(array.dtype));
  if (array.dtype == DType::kFloat16) {
    widen_bytes<hwy::float16_t>(source, count, out);
  } else if (array.dtype == DType::kBFloat16) {
    widen_bytes<hwy::bfloat16_t>(source, count, out);
  } else {
    std::memcpy(out, source, static_cast<std::size_t>(count) * sizeof(float));
  }
}

/// Calls read(part, row of the part, number) for the rows first .. first + count - 1 of all parts, counted
/// across the parts.
template <typename Read>
HWY_ATTR void each_row(std::span<const HostArray> parts, std::int64_t first, std::int64_t count,
                       const Read& read) {
  std::int64_t number = 0;
  for (const HostArray& part : parts) {
    for (; first < part.rows && number < count; ++first, ++number) read(part, first, number);
    first = std::max<std::int64_t>(first - part.rows, 0);
  }
}

/// Transposes rows [kPanel, words], which are `stride` words apart, to [words, kPanel]. A word is a float32,
/// or a pair of bfloat16 whose bits a float carries.
HWY_ATTR void transpose(const float* rows, std::int64_t stride, std::int64_t words, float* out) {
  std::int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  // A square of 4 × 4 at a time, and all squares of one cache line of the rows before the next line.
  constexpr std::int64_t kSide = 4, kLine = 16;
  const hn::FixedTag<float, kSide> d;
  const hn::Repartition<double, decltype(d)> pairs;
  for (; k + kLine <= words; k += kLine) {
    for (std::int64_t c = 0; c < kPanel; c += kSide) {
      for (std::int64_t square = k; square < k + kLine; square += kSide) {
        const float* const from = rows + c * stride + square;
        const auto row_0 = hn::LoadU(d, from), row_1 = hn::LoadU(d, from + stride),
                   row_2 = hn::LoadU(d, from + 2 * stride), row_3 = hn::LoadU(d, from + 3 * stride);
        const auto low_01 = hn::BitCast(pairs, hn::InterleaveLower(d, row_0, row_1)),
                   low_23 = hn::BitCast(pairs, hn::InterleaveLower(d, row_2, row_3)),
                   high_01 = hn::BitCast(pairs, hn::InterleaveUpper(d, row_0, row_1)),
                   high_23 = hn::BitCast(pairs, hn::InterleaveUpper(d, row_2, row_3));
        float* const to = out + square * kPanel + c;
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low_01, low_23)), d, to);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low_01, low_23)), d, to + kPanel);
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high_01, high_23)), d, to + 2 * kPanel);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high_01, high_23)), d, to + 3 * kPanel);
      }
    }
  }
#endif
  for (; k < words; ++k) {
    for (std::int64_t c = 0; c < kPanel; ++c) out[k * kPanel + c] = rows[c * stride + k];
  }
}

/// Converts row `row` of an array to words for a panel of bfloat16. `wide` and `narrowed` are scratch memory
/// for one row.
HWY_ATTR void to_pairs(const HostArray& array, std::int64_t row, float* wide, hwy::bfloat16_t* narrowed,
                       float* words) {
  constexpr auto kBytes = static_cast<std::int64_t>(sizeof(hwy::bfloat16_t));
  const std::int64_t first = row * array.columns;
  const void* source = static_cast<const std::byte*>(array.data) + first * kBytes;
  if (array.dtype != DType::kBFloat16) {
    to_float32(array, first, array.columns, wide);
    narrow(wide, array.columns, narrowed);
    source = narrowed;
  }
  std::memcpy(words, source, static_cast<std::size_t>(array.columns * kBytes));
}

/// Fills the panels first .. last - 1 from an array [in, out].
template <typename W>
HWY_ATTR void pack_input_first(const HostArray& array, std::int64_t first, std::int64_t last, W* packed) {
  constexpr std::int64_t kRows = kInterleavedRows<W>;
  const std::int64_t in = array.rows, out = array.columns, depth = divide_up(in, kRows) * kRows;
  const std::int64_t first_column = first * kPanel, width = std::min(last * kPanel, out) - first_column;
  if (last * kPanel > out) {
    std::memset(packed + (last - 1) * depth * kPanel, 0,
                sizeof(W) * static_cast<std::size_t>(depth * kPanel));
  }
  // Reads the file's rows, which are contiguous, one at a time or as an interleaved pair.
  std::vector<float> rows(static_cast<std::size_t>(kRows * width));
  std::vector<W> pair(rows.size());
  for (std::int64_t k = 0; k < in; k += kRows) {
    const std::int64_t count = std::min(kRows, in - k);
    for (std::int64_t row = 0; row < count; ++row) {
      to_float32(array, (k + row) * out + first_column, width, rows.data() + row * width);
    }
    std::fill(rows.begin() + count * width, rows.end(), 0.0f);
    if constexpr (kRows > 1) narrow(rows.data(), kRows * width, pair.data());
    for (std::int64_t column = 0; column < width; column += kPanel) {
      const std::int64_t columns = std::min(kPanel, width - column);
      W* const panel = packed + (first_column + column) * depth + k * kPanel;
      if constexpr (kRows == 1) {
        narrow(rows.data() + column, columns, panel);
      } else {
        for (std::int64_t c = 0; c < columns; ++c) {
          for (std::int64_t row = 0; row < kRows; ++row)
            panel[c * kRows + row] = pair[row * width + column + c];
        }
      }
    }
  }
}

/// Fills the panels first .. last - 1 from parts that together form [out, in].
template <typename W>
HWY_ATTR void pack_output_first(std::span<const HostArray> parts, std::int64_t in, std::int64_t out,
                                std::int64_t first, std::int64_t last, W* packed) {
  constexpr std::int64_t kRows = kInterleavedRows<W>;
  const std::int64_t words = divide_up(in, kRows);
  std::vector<float> rows(static_cast<std::size_t>(kPanel * words)), transposed, wide;
  std::vector<hwy::bfloat16_t> narrowed;
  if constexpr (kRows > 1) {
    wide.resize(static_cast<std::size_t>(in));
    narrowed.resize(static_cast<std::size_t>(in));
  }
  if constexpr (std::is_same_v<W, hwy::float16_t>) transposed.resize(rows.size());
  for (std::int64_t column = first * kPanel; column < std::min(last * kPanel, out); column += kPanel) {
    const std::int64_t columns = std::min(kPanel, out - column);
    each_row(parts, column, columns,
             [&](const HostArray& part, std::int64_t row, std::int64_t number) HWY_ATTR {
               float* const to = rows.data() + number * words;
               if constexpr (kRows > 1) {
                 to_pairs(part, row, wide.data(), narrowed.data(), to);
               } else {
                 to_float32(part, row * in, in, to);
               }
             });
    std::fill(rows.begin() + columns * words, rows.end(), 0.0f);
    W* const panel = packed + column * words * kRows;
    if constexpr (std::is_same_v<W, hwy::float16_t>) {
      transpose(rows.data(), words, words, transposed.data());
      narrow(transposed.data(), words * kPanel, panel);
    } else {
      transpose(rows.data(), words, words, reinterpret_cast<float*>(panel));
    }
  }
}

/// Fills the panels first .. last - 1 in 8 or 4 bits, one group along the depth at a time.
template <typename Panel>
HWY_ATTR void pack_int8_panels(std::span<const HostArray> parts, WeightOrder order, std::int64_t in,
                               std::int64_t out, std::int64_t first, std::int64_t last, Panel* packed) {
  constexpr std::int64_t kInputs = Panel::kInputs;
  const std::int64_t groups = groups_of<Panel>(in);
  float values[kInputs * kPanel] = {};
  const auto pack = [&](std::int64_t count, Panel& panel) HWY_ATTR {
    std::fill(values + count * kPanel, std::end(values), 0.0f);
    quantize_panel(values, panel);
  };
  if (order == WeightOrder::kInputFirst) {
    const std::int64_t first_column = first * kPanel, columns = std::min(last * kPanel, out) - first_column;
    std::vector<float> rows(static_cast<std::size_t>(std::min(kInputs, in) * columns));
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t count = std::min(kInputs, in - g * kInputs);
      for (std::int64_t k = 0; k < count; ++k) {
        to_float32(parts[0], (g * kInputs + k) * out + first_column, columns, rows.data() + k * columns);
      }
      for (std::int64_t column = 0; column < columns; column += kPanel) {
        const std::int64_t width = std::min(kPanel, columns - column);
        for (std::int64_t k = 0; k < count; ++k) {
          std::fill(std::copy_n(rows.data() + k * columns + column, width, values + k * kPanel),
                    values + (k + 1) * kPanel, 0.0f);
        }
        pack(count, packed[(first + column / kPanel) * groups + g]);
      }
    }
    return;
  }
  std::vector<float> rows(static_cast<std::size_t>(kPanel * in));
  for (std::int64_t panel = first; panel < last; ++panel) {
    const std::int64_t columns = std::min(kPanel, out - panel * kPanel);
    each_row(parts, panel * kPanel, columns,
             [&](const HostArray& part, std::int64_t row, std::int64_t number)
                 HWY_ATTR { to_float32(part, row * in, in, rows.data() + number * in); });
    std::fill(rows.begin() + columns * in, rows.end(), 0.0f);
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t count = std::min(kInputs, in - g * kInputs);
      transpose(rows.data() + g * kInputs, in, count, values);
      pack(count, packed[panel * groups + g]);
    }
  }
}

HWY_ATTR void pack_weight(std::span<const HostArray> parts, WeightOrder order, const Weight& weight,
                          std::int64_t first, std::int64_t last) {
  if (is_quantized(weight.packed.dtype())) {
    with_panels(weight.packed.dtype(), weight.packed.data<void>(), [&](auto* packed) HWY_ATTR {
      pack_int8_panels(parts, order, weight.in_features, weight.out_features, first, last, packed);
    });
    return;
  }
  with_elements(weight.packed.dtype(), weight.packed.data<void>(), [&](auto* packed) HWY_ATTR {
    if (order == WeightOrder::kInputFirst) {
      pack_input_first(parts[0], first, last, packed);
    } else {
      pack_output_first(parts, weight.in_features, weight.out_features, first, last, packed);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace staircase
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace staircase {

HWY_EXPORT(to_float32);
HWY_EXPORT(pack_weight);

Tensor CpuDevice::load(const HostArray& array) {
  const Shape shape = array.rows > 1 ? Shape{array.rows, array.columns} : Shape{array.columns};
  Tensor tensor = allocate(DType::kFloat32, shape);
  HWY_DYNAMIC_DISPATCH(to_float32)(array, 0, tensor.size(), tensor.data<float>());
  return tensor;
}

Weight CpuDevice::load_weight(std::span<const HostArray> parts, WeightOrder order, DType dtype) {
  Weight weight;
  if (order == WeightOrder::kInputFirst) {
    weight.in_features = parts[0].rows;
    weight.out_features = parts[0].columns;
  } else {
    weight.in_features = parts[0].columns;
    for (const HostArray& part : parts) weight.out_features += part.rows;
  }
  const std::int64_t panels = divide_up(weight.out_features, kPanel),
                     interleaved = dtype == DType::kBFloat16 ? kPair : 1,
                     depth = divide_up(weight.in_features, interleaved) * interleaved;
  Shape shape{panels, depth, kPanel};
  if (is_quantized(dtype)) {
    with_panels(dtype, nullptr, [&]<typename Panel>(const Panel*) {
      shape = {panels, groups_of<Panel>(weight.in_features), sizeof(Panel)};
    });
  }
  const std::size_t bytes = bytes_of(dtype, shape);
  weight.packed = Tensor(dtype, shape, weight_memory_.allocate(bytes));
  parallel_ranges(team_, panels, [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(pack_weight)(parts, order, weight, first, last);
  });
  return weight;
}

}  // namespace staircase
#endif  // HWY_ONCE
