// load and load_weight: from the bytes of a file to tensors, each element read and written once.
//
// A weight matrix goes into panels, packed[out / 64][in][out % 64] (in bfloat16 in pairs, see cpu_device.h),
// and is converted from its stored format to the requested one on the way. The threads divide the panels as
// they will in `linear`, so on a NUMA machine each panel is near the thread that will read it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/load.cpp"
#include <hwy/foreach_target.h>
// The target comes first.
#include <hwy/highway.h>

#include <cstring>
#include <type_traits>

#include "kernels/cpu/int8-inl.h"
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace staircase {
namespace HWY_NAMESPACE {

using Narrow = hn::CappedTag<float, 4>;  // the widest vector whose 16-bit half exists on every target

/// Widens `count` values from `source`, which need not be aligned.
template <typename Stored>
HWY_ATTR void widen_bytes(const std::byte* source, std::int64_t count, float* out) {
  const Narrow d;
  const hn::Rebind<Stored, Narrow> stored;
  constexpr std::int64_t kStep = hn::MaxLanes(Narrow());
  HWY_ALIGN Stored buffer[kStep] = {};
  HWY_ALIGN float wide[kStep];
  for (std::int64_t i = 0; i < count; i += kStep) {
    const std::int64_t n = std::min(kStep, count - i);
    std::memcpy(buffer, source + i * static_cast<std::int64_t>(sizeof(Stored)),
                static_cast<std::size_t>(n) * sizeof(Stored));
    auto value = hn::PromoteTo(d, hn::Load(stored, buffer));
    if constexpr (std::is_same_v<Stored, hwy::float16_t>) {
      // Without an instruction for it, Highway takes infinity and NaN for numbers from 65536 on: the fraction
      // is right, but the exponent is not.
      const auto beyond = hn::Ge(hn::Abs(value), hn::Set(d, 65536.0f));
      value = hn::IfThenElse(beyond, hn::Or(value, hn::Inf(d)), value);
    }
    hn::Store(value, d, wide);
    std::copy_n(wide, n, out + i);
  }
}

/// `count` elements of the array from element `first` on, as float32.
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

/// Rows first .. first + count - 1 of all parts, one part after another, as float32.
HWY_ATTR void rows_to_float32(std::span<const HostArray> parts, std::int64_t first, std::int64_t count,
                              float* out) {
  for (const HostArray& part : parts) {
    const std::int64_t rows = std::clamp<std::int64_t>(part.rows - first, 0, count);
    if (rows > 0) to_float32(part, first * part.columns, rows * part.columns, out);
    out += rows * part.columns;
    count -= rows;
    first = std::max<std::int64_t>(first - part.rows, 0);
  }
}

/// Stores `count` columns of row k of a panel.
template <typename W>
HWY_ATTR void pack_row(const float* values, std::int64_t count, std::int64_t k, W* panel) {
  if constexpr (kInterleavedRows<W> == 1) {
    narrow(values, count, panel + k * kPanel);
  } else {
    for (std::int64_t c = 0; c < count; ++c) {
      panel[place_in_panel<kPair>(k, c)].bits = bfloat16_from_float32(values[c]);
    }
  }
}

/// Fills the panels first .. last - 1 of `depth` rows.
template <typename W>
HWY_ATTR void pack_panels(std::span<const HostArray> parts, WeightOrder order, std::int64_t in,
                          std::int64_t out, std::int64_t depth, std::int64_t first, std::int64_t last,
                          W* packed) {
  if (last * kPanel > out || depth > in) {
    const std::int64_t unfilled = depth > in ? first : last - 1;
    std::memset(packed + unfilled * depth * kPanel, 0,
                sizeof(W) * static_cast<std::size_t>((last - unfilled) * depth * kPanel));
  }
  const std::int64_t first_column = first * kPanel, last_column = std::min(last * kPanel, out);
  if (order == WeightOrder::kInputFirst) {
    // One row of the file at a time: it is contiguous there.
    std::vector<float> row(static_cast<std::size_t>(last_column - first_column));
    for (std::int64_t k = 0; k < in; ++k) {
      to_float32(parts[0], k * out + first_column, last_column - first_column, row.data());
      for (std::int64_t column = first_column; column < last_column; column += kPanel) {
        pack_row(row.data() + (column - first_column), std::min(kPanel, last_column - column), k,
                 packed + column * depth);
      }
    }
    return;
  }
  std::vector<float> rows(static_cast<std::size_t>(kPanel * in));
  float panel_row[kPanel];
  for (std::int64_t column = first_column; column < last_column; column += kPanel) {
    const std::int64_t columns = std::min(kPanel, last_column - column);
    rows_to_float32(parts, column, columns, rows.data());
    for (std::int64_t k = 0; k < in; ++k) {
      for (std::int64_t c = 0; c < columns; ++c) panel_row[c] = rows[static_cast<std::size_t>(c * in + k)];
      pack_row(panel_row, columns, k, packed + column * depth);
    }
  }
}

/// pack_panels for 8 or 4 bits, a group of the depth at a time.
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
    rows_to_float32(parts, panel * kPanel, columns, rows.data());
    std::fill(rows.begin() + columns * in, rows.end(), 0.0f);
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t count = std::min(kInputs, in - g * kInputs);
      for (std::int64_t c = 0; c < kPanel; ++c) {
        for (std::int64_t k = 0; k < count; ++k) {
          values[k * kPanel + c] = rows[static_cast<std::size_t>(c * in + g * kInputs + k)];
        }
      }
      pack(count, packed[panel * groups + g]);
    }
  }
}

HWY_ATTR void pack_weight(std::span<const HostArray> parts, WeightOrder order, const Weight& weight,
                          std::int64_t first, std::int64_t last) {
  if (in_groups(weight.packed.dtype())) {
    with_panels(weight.packed.dtype(), weight.packed.data<void>(), [&](auto* packed) HWY_ATTR {
      pack_int8_panels(parts, order, weight.in_features, weight.out_features, first, last, packed);
    });
    return;
  }
  with_elements(weight.packed.dtype(), weight.packed.data<void>(), [&](auto* packed) HWY_ATTR {
    pack_panels(parts, order, weight.in_features, weight.out_features, weight.packed.dim(1), first, last,
                packed);
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
  std::vector<std::int64_t> shape{array.columns};
  if (array.rows > 1) shape.insert(shape.begin(), array.rows);
  Tensor tensor = allocate(DType::kFloat32, std::move(shape));
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
  std::vector<std::int64_t> shape{panels, depth, kPanel};
  if (in_groups(dtype)) {
    with_panels(dtype, nullptr, [&]<typename Panel>(const Panel*) {
      shape = {panels, groups_of<Panel>(weight.in_features), sizeof(Panel)};
    });
  }
  weight.packed = allocate(dtype, std::move(shape));
  parallel_ranges(team_, panels, [&](std::int64_t first, std::int64_t last) {
    HWY_DYNAMIC_DISPATCH(pack_weight)(parts, order, weight, first, last);
  });
  return weight;
}

}  // namespace staircase
#endif  // HWY_ONCE
