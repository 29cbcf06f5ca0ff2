// Products by matrices (AMX) on any processor that has VDPBF16PS: the kernels' own code, on registers that
// tests/amx_emulation/include emulates. The tests of attention and of products in 16 and fewer bits run here
// once more. These here cover what is special about matrices: whole depths, and tiles of 16 and 32 rows.
#include <doctest/doctest.h>

#include <numeric>
#include <random>

#include "kernels/cpu/amx_registers.h"
#include "kernels/cpu/int8_int4_tile.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr std::size_t kDepths[] = {32, 64, 224};

struct Product {
  std::size_t rows, in, out;
  Epilogue epilogue = Epilogue::kStore;
  DType dtype = DType::kBFloat16;
  Values x = rounded(random_values(rows * in, 1), DType::kBFloat16), w = random_values(in * out, 2),
         before = random_values(rows * out, 3);

  /// The same for `count` rows from `first` on.
  Product some(std::size_t first, std::size_t count) const {
    const auto part = [&](const Values& values, std::size_t width) {
      return Values(values.data() + first * width, values.data() + (first + count) * width);
    };
    return {count, in, out, epilogue, dtype, part(x, in), w, part(before, out)};
  }

  Values run(Device& device) const {
    Tensor result = epilogue == Epilogue::kAdd ? upload(device, shape_of(rows, out), before)
                                               : result_tensor(device, shape_of(rows, out));
    device.linear(upload(device, shape_of(rows, in), x), {}, upload_weight(device, w, in, out, dtype), {},
                  epilogue, result);
    return download(device, result);
  }

  naive::Doubles wanted() const {
    return naive::linear(x, rounded(w, DType::kBFloat16), {}, rows, in, out, epilogue, before);
  }
};

/// As in linear.cpp.
double tolerance(std::size_t in) {
  return 1e-6 * (1.0 + std::sqrt(static_cast<double>(in)));
}

/// Whether this program runs the emulation here: it needs VDPBF16PS for single rows.
bool emulates() {
  if (make_cpu_device(1)->operand_dtype(2, DType::kBFloat16) == DType::kBFloat16) return true;
  MESSAGE("this processor does not multiply bfloat16, so nothing was tested");
  return false;
}

TEST_CASE("products by matrices agree with the formula at every edge of a tile") {
  if (!emulates()) return;
  for (const std::size_t in : kDepths) {
    for (const std::size_t rows : {1u, 2u, 15u, 16u, 17u, 31u, 32u, 33u, 65u}) {
      for (const std::size_t out : {1u, 32u, 33u, 96u, 130u}) {
        for (const Epilogue epilogue : {Epilogue::kStore, Epilogue::kGelu, Epilogue::kAdd}) {
          const Product product{rows, in, out, epilogue};
          const naive::Doubles wanted = product.wanted();
          on_every_cpu([&](Device& device) {
            CAPTURE(rows);
            CAPTURE(in);
            CAPTURE(static_cast<int>(epilogue));
            CHECK(difference("out", product.run(device), wanted, out, tolerance(in)) == "");
          });
        }
      }
    }
  }
}

TEST_CASE("a row that matrices multiply gets the same bits alone, among a few and among many") {
  if (!emulates()) return;
  for (const std::size_t in : kDepths) {
    const Product all{300, in, 100};
    on_every_cpu([&](Device& device) {
      const Values together = all.run(device);
      for (const std::size_t count : {1u, 2u, 16u, 17u, 32u, 33u, 255u, 257u}) {
        for (const std::size_t first : {std::size_t{0}, std::size_t{43}, all.rows - count}) {
          if (first + count > all.rows) continue;
          const Values wanted(together.data() + first * all.out, together.data() + (first + count) * all.out);
          CAPTURE(in);
          CAPTURE(first);
          CAPTURE(count);
          CHECK(same_bits(all.some(first, count).run(device), wanted));
        }
      }
    });
  }
}

/// What one product with 64 columns multiplies; it leaves no tile in use.
long rows_multiplied(DType dtype, std::size_t rows, std::size_t in) {
  const long before = emulated::rows_multiplied;
  Product{rows, in, 64, Epilogue::kStore, dtype}.run(*make_cpu_device(1));
  for (const emulated::Tile& tile : emulated::tiles) CHECK(tile.rows == 0);
  return emulated::rows_multiplied - before;
}

TEST_CASE("rows of a whole depth are multiplied by matrices, nothing else is, and no tile stays in use") {
  if (!emulates()) return;
  // Each row once for each depth of 32 and each 16 columns.
  CHECK(rows_multiplied(DType::kBFloat16, 1, 64) == 0);  // by vectors
  CHECK(rows_multiplied(DType::kBFloat16, 2, 33) == 0);
  CHECK(rows_multiplied(DType::kBFloat16, 2, 64) == 2 * 2 * 4);
  CHECK(rows_multiplied(DType::kBFloat16, 45, 224) == 45 * 7 * 4);
  CHECK(rows_multiplied(DType::kBFloat16, 300, 224) == 300 * 7 * 4);
}

TEST_CASE("48 and more rows are multiplied by matrices with weights in 8 bits, and none with weights in 4") {
  if (!emulates()) return;
  // Each row once for each group and each 16 columns.
  CHECK(rows_multiplied(DType::kInt8, 47, 224) == 0);
  CHECK(rows_multiplied(DType::kInt8, 48, 224) == 48 * 4 * 4);
  CHECK(rows_multiplied(DType::kInt8, 300, 224) == 300 * 4 * 4);
  CHECK(rows_multiplied(DType::kInt4, 300, 224) == 0);
}

TEST_CASE("matrices of bytes give the bits of vectors, for a panel and for either half") {
  if (!emulates()) return;
  constexpr std::int64_t kGroups = 3;
  std::mt19937 random(1);
  const auto scale = [&] { return static_cast<float>(random() % 1000 + 1) / 1000; };
  std::vector<Int8Panel> w(kGroups);
  for (Int8Panel& group : w) {
    for (auto& quad : group.values) {
      for (auto& column : quad) {
        for (std::uint8_t& value : column) value = static_cast<std::uint8_t>(random());
      }
    }
    for (float& value : group.scales) value = scale();
  }
  std::vector<Int8Panel::Row> x(kInt8MatrixRows * kGroups);
  for (Int8Panel::Row& group : x) {
    for (std::int8_t& value : group.values) value = static_cast<std::int8_t>(random());
    group.sum = std::accumulate(std::begin(group.values), std::end(group.values), 0);
    group.scale = scale();
  }
  for (const std::int64_t column : {0, 32}) {
    for (std::int64_t columns = 32; column + columns <= kPanel; columns += 32) {
      AmxInt8 matrices;
      for (std::int64_t rows = 1; rows <= kInt8MatrixRows; ++rows) {
        std::vector<float> got(kInt8MatrixRows * kPanel, 1.0f), wanted = got;
        matrices.multiply(x.data(), kGroups, rows, w.data(), column, columns, kGroups, got.data());
        for (std::int64_t row = 0; row < rows; ++row) {
          int8_tile<Int8Panel>(1, static_cast<int>(columns), TileRole::kAlone)(
              x.data() + row * kGroups, kGroups, w.data(), column, kGroups, wanted.data() + row * kPanel,
              nullptr);
        }
        CAPTURE(rows);
        CAPTURE(column);
        CAPTURE(columns);
        CHECK(got == wanted);
      }
    }
  }
}

TEST_CASE(
    "attention in bfloat16 multiplies queries and keys by matrices, and in a prompt weights and values") {
  if (!emulates()) return;
  const std::unique_ptr<Device> device = make_cpu_device(1);
  constexpr std::int64_t kHead = 64, kCapacity = 48;
  const Values numbers = rounded(random_values(kCapacity * kHead, 1), DType::kBFloat16);
  const auto rows_multiplied = [&](int start, int count) {
    const Tensor cache = upload_as(DType::kBFloat16, *device, {1, 1, kCapacity, kHead}, numbers);
    const Tensor queries =
        upload(*device, {count, kHead}, {numbers.begin(), numbers.begin() + count * kHead});
    Tensor out = result_tensor(*device, {count, kHead});
    const long before = emulated::rows_multiplied;
    device->attention(make_batch(*device, {{start, count}}), queries, {cache, cache}, out);
    for (const emulated::Tile& tile : emulated::tiles) CHECK(tile.rows == 0);
    return emulated::rows_multiplied - before;
  };
  // One query or two: 16 keys in each of two tiles, twice 32 features. Vectors multiply their weights.
  CHECK(rows_multiplied(31, 1) == 2 * 2 * 16);
  CHECK(rows_multiplied(30, 2) == 2 * 2 * 16);
  // 40 queries, 32 of which see 32 keys, and 8 see 40: a depth of 64, then one of 32 or 64 positions.
  CHECK(rows_multiplied(0, 40) == 32 * (2 * 2 + 4 * 1) + 8 * (4 * 2 + 4 * 2));
}

}  // namespace
}  // namespace staircase
