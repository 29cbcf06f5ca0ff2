// Low-rank changes of rows by their adapters, and products finished on their own, against plain loops in
// double precision.
//
// A sum of `in` products of numbers below 1 errs by some roundings of its size, about sqrt(in). Summed over
// the ranks, the error grows with the root of their number.
#include <cmath>

#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

/// Adapters with these ranks. Rank k changes the outputs columns[2 k] .. columns[2 k + 1] - 1.
struct Adapters {
  std::vector<std::int32_t> firsts{0}, columns;
  std::size_t in, out;
  DType dtype = DType::kFloat32;
  Values down, up, scales;

  Adapters(const std::vector<int>& ranks, std::size_t inputs, std::size_t outputs)
      : in(inputs), out(outputs) {
    for (const int rank : ranks) firsts.push_back(firsts.back() + rank);
    const auto count = static_cast<std::size_t>(firsts.back());
    down = random_values(count * in, 2);
    up = random_values(count * out, 3);
    scales = random_values(count, 6, 2.0f);
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t first = k % 3 == 0 ? 0 : out / 3, last = k % 3 == 1 ? out - out / 4 : out;
      columns.push_back(static_cast<std::int32_t>(first));
      columns.push_back(static_cast<std::int32_t>(last));
      for (std::size_t i = 0; i < out; ++i) {
        if (i < first || i >= last) up[k * out + i] = 0.0f;
      }
    }
  }

  /// The numbers of A and B as they come back from that type.
  Adapters in_type(DType dtype) const {
    Adapters narrow = *this;
    narrow.dtype = dtype;
    narrow.down = rounded(down, dtype);
    narrow.up = rounded(up, dtype);
    return narrow;
  }

  LowRank on(Device& device) const {
    const std::size_t count = columns.size() / 2;
    return {upload_as(dtype, device, shape_of(count, in), down),
            upload_as(dtype, device, shape_of(count, out), up),
            upload(device, shape_of(1, count), scales).reshaped({static_cast<std::int64_t>(count)}),
            upload_ints(device, columns).reshaped(shape_of(count, 2)), upload_ints(device, firsts)};
  }

  naive::Doubles added(const Values& x, const std::vector<std::int32_t>& adapters,
                       const Values& before) const {
    naive::Doubles result(before.begin(), before.end());
    for (std::size_t r = 0; r < adapters.size(); ++r) {
      if (adapters[r] == kNoAdapter) continue;
      const auto adapter = static_cast<std::size_t>(adapters[r]);
      for (auto k = static_cast<std::size_t>(firsts[adapter]);
           k < static_cast<std::size_t>(firsts[adapter + 1]); ++k) {
        double inside = 0.0;
        for (std::size_t i = 0; i < in; ++i)
          inside += static_cast<double>(x[r * in + i]) * static_cast<double>(down[k * in + i]);
        for (std::size_t o = 0; o < out; ++o)
          result[r * out + o] +=
              static_cast<double>(scales[k]) * inside * static_cast<double>(up[k * out + o]);
      }
    }
    return result;
  }
};

TEST_CASE("add_low_rank changes each row by the ranks of its own adapter, and a row without one not at all") {
  for (const auto& [in, out] : std::vector<std::pair<std::size_t, std::size_t>>{
           {1, 4}, {3, 7}, {16, 16}, {75, 33}, {256, 768}, {1030, 259}}) {
    for (const std::size_t rows : {1u, 2u, 7u, 70u}) {
      const DType stored = kTypes[(rows + in) % 3];
      const Adapters adapters = Adapters({8, 0, 1, 40}, in, out).in_type(stored);
      std::vector<std::int32_t> chosen(rows);
      for (std::size_t r = 0; r < rows; ++r) chosen[r] = static_cast<std::int32_t>((r * 7 + 3) % 5) - 1;
      const Values before = random_values(rows * out, 5);
      on_every_device([&, in = in, out = out](Device& device) {
        for (const DType dtype : {DType::kFloat32, device.operand_dtype(1000, DType::kFloat16),
                                  device.operand_dtype(1000, DType::kBFloat16)}) {
          INFO(rows, " rows of ", in, " inputs in ", to_string(dtype), ", ", out, " outputs, adapters in ",
               to_string(stored));
          const Values x = rounded(random_values(rows * in, 4), dtype);
          Tensor result = upload(device, shape_of(rows, out), before);
          device.add_low_rank(upload_as(dtype, device, shape_of(rows, in), x), upload_ints(device, chosen),
                              adapters.on(device), result);
          const Values got = download(device, result);
          CHECK(difference("out", got, adapters.added(x, chosen, before), out,
                           3e-6 * std::sqrt(40.0 * static_cast<double>(in))) == "");
          for (std::size_t r = 0; r < rows; ++r) {
            if (chosen[r] != kNoAdapter && chosen[r] != 1) continue;  // the second one has no rank
            const auto first = static_cast<std::ptrdiff_t>(r * out),
                       last = first + static_cast<std::ptrdiff_t>(out);
            CHECK(same_bits({got.begin() + first, got.begin() + last},
                            {before.begin() + first, before.begin() + last}));
          }
        }
      });
    }
  }
}

TEST_CASE("add_low_rank gives a row the same bits alone as among rows of other adapters") {
  const Adapters adapters({8, 3, 16}, 256, 300);
  const std::vector<std::int32_t> chosen{2, 0, -1, 1, 0, 0, 2, 1, 1, 2, 0};
  const std::size_t rows = chosen.size();
  const Values x = random_values(rows * 256, 4), before = random_values(rows * 300, 5);
  on_every_device([&](Device& device) {
    const LowRank change = adapters.on(device);
    Tensor all = upload(device, shape_of(rows, 300), before);
    device.add_low_rank(upload(device, shape_of(rows, 256), x), upload_ints(device, chosen), change, all);
    const Values together = download(device, all);
    for (std::size_t r = 0; r < rows; ++r) {
      const auto row = [&](const Values& values, std::size_t width) {
        const auto first = values.begin() + static_cast<std::ptrdiff_t>(r * width);
        return Values(first, first + static_cast<std::ptrdiff_t>(width));
      };
      Tensor alone = upload(device, {1, 300}, row(before, 300));
      device.add_low_rank(upload(device, {1, 256}, row(x, 256)), upload_ints(device, {chosen[r]}), change,
                          alone);
      CHECK(same_bits(download(device, alone), row(together, 300)));
    }
  });
}

TEST_CASE("activate finishes products as linear does, in every type of its results") {
  for (const std::size_t rows : {1u, 5u, 70u}) {
    for (const std::size_t width : {3u, 16u, 64u, 75u, 130u}) {
      for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kGeluErf,
                                      Epilogue::kSiluGate, Epilogue::kGeluGate}) {
        const std::size_t turn = kGateColumns,
                          columns = is_gated(epilogue) ? (width + turn - 1) / turn * 2 * turn : width;
        const Values x = random_values(rows * columns, 1, 5.0f);
        naive::Doubles want;
        for (std::size_t r = 0; r < rows; ++r) {
          for (std::size_t i = 0; i < width; ++i) {
            const auto at = [&](std::size_t column) { return static_cast<double>(x[r * columns + column]); };
            const std::size_t gate = i / turn * 2 * turn + i % turn;
            want.push_back(epilogue == Epilogue::kStore      ? at(i)
                           : epilogue == Epilogue::kGelu     ? naive::gelu(at(i))
                           : epilogue == Epilogue::kGeluErf  ? naive::gelu_erf(at(i))
                           : epilogue == Epilogue::kSiluGate ? naive::silu(at(gate)) * at(gate + turn)
                                                             : naive::gelu(at(gate)) * at(gate + turn));
          }
        }
        on_every_device([&](Device& device) {
          for (const DType dtype : {DType::kFloat32, device.operand_dtype(1000, DType::kFloat16),
                                    device.operand_dtype(1000, DType::kBFloat16)}) {
            INFO(rows, " rows of ", width, " results in ", to_string(dtype), ", epilogue ",
                 static_cast<int>(epilogue));
            Tensor out = result_tensor(device, shape_of(rows, width), dtype);
            device.activate(upload(device, shape_of(rows, columns), x), epilogue, out);
            CHECK(difference("out", download_any(device, out), want, width,
                             5e-6 + rounding_of_largest(want, dtype)) == "");
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace staircase
