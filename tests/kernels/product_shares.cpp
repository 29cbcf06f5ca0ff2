// How the threads divide a product, and everything else that is divided into ranges.
#include "kernels/cpu/product_shares.h"

#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr std::int64_t kColumns[] = {1, 31, 32, 33, 63, 64, 65, 96, 100, 257, 768, 800, 2304};

std::vector<ProductPiece> pieces_of(const ProductShares& shares, IndexRange units) {
  std::vector<ProductPiece> pieces;
  shares.for_each_piece(units, [&](const ProductPiece& piece) { pieces.push_back(piece); });
  return pieces;
}

TEST_CASE("shares cover all numbers in their order, and their sizes differ by at most one") {
  for (std::int64_t count = 0; count < 200; ++count) {
    for (std::int64_t parts = 1; parts <= 64; ++parts) {
      std::int64_t seen = 0;
      for (std::int64_t i = 0; i < parts; ++i) {
        const IndexRange share = share_of(count, parts, i);
        REQUIRE(share.first == seen);
        REQUIRE(share.last - share.first >= count / parts);
        REQUIRE(share.last - share.first <= divide_up(count, parts));
        seen = share.last;
      }
      REQUIRE(seen == count);
    }
  }
}

TEST_CASE("each row of each half of a panel of a product belongs to one thread") {
  for (std::int64_t rows = 1; rows <= 513; rows += rows < 100 ? 1 : 59) {
    for (const std::int64_t columns : kColumns) {
      const ProductShares shares(rows, columns);
      const std::int64_t halves = divide_up(columns, 32);
      for (std::int64_t threads = 1; threads <= 64; threads += threads < 17 ? 1 : 5) {
        std::vector<int> times(static_cast<std::size_t>(rows * halves));
        for (std::int64_t i = 0; i < threads; ++i) {
          for (const ProductPiece& piece : pieces_of(shares, share_of(shares.count(), threads, i))) {
            REQUIRE(piece.halves.first >= 0);
            REQUIRE(piece.halves.last <= halves);
            REQUIRE(piece.rows.first >= 0);
            REQUIRE(piece.rows.last <= rows);
            for (std::int64_t half = piece.halves.first; half < piece.halves.last; ++half) {
              for (std::int64_t row = piece.rows.first; row < piece.rows.last; ++row) {
                ++times[static_cast<std::size_t>(half * rows + row)];
              }
            }
          }
        }
        CAPTURE(rows);
        CAPTURE(columns);
        CAPTURE(threads);
        REQUIRE(std::count(times.begin(), times.end(), 1) == rows * halves);
      }
    }
  }
}

TEST_CASE("no thread has more of a product than if they shared halves of panels") {
  for (std::int64_t rows = 1; rows <= 513; ++rows) {
    for (const std::int64_t columns : kColumns) {
      const ProductShares shares(rows, columns);
      if (columns % 64 != 0) continue;  // the last panel counts as a whole
      for (std::int64_t threads = 1; threads <= 64; ++threads) {
        const std::int64_t most = divide_up(shares.count(), threads),
                           most_halves = divide_up(columns / 32, threads);
        CAPTURE(rows);
        CAPTURE(columns);
        CAPTURE(threads);
        REQUIRE(most * (columns / 32) <= most_halves * shares.count());
      }
    }
  }
}

TEST_CASE("of 512 rows and 768 columns each of 16 threads has the same, and panels stay whole") {
  const ProductShares shares(512, 768);
  for (std::int64_t threads : {1, 2, 3, 4, 6, 12}) {
    for (std::int64_t i = 0; i < threads; ++i) {
      const auto pieces = pieces_of(shares, share_of(shares.count(), threads, i));
      REQUIRE(pieces.size() == 1);
      CHECK(pieces[0].rows.last - pieces[0].rows.first == 512);
      CHECK(pieces[0].halves.last - pieces[0].halves.first == 24 / threads);
    }
  }
  for (std::int64_t i = 0; i < 16; ++i) {
    std::int64_t work = 0;
    for (const ProductPiece& piece : pieces_of(shares, share_of(shares.count(), 16, i))) {
      work += (piece.rows.last - piece.rows.first) * (piece.halves.last - piece.halves.first);
    }
    CHECK(work == 512 * 24 / 16);
  }
}

TEST_CASE("a share has at most three pieces, and a piece enough rows for a tile of matrices") {
  for (std::int64_t rows = 1; rows <= 513; ++rows) {
    const ProductShares shares(rows, 768);
    for (std::int64_t threads = 1; threads <= 64; ++threads) {
      for (std::int64_t i = 0; i < threads; ++i) {
        const auto pieces = pieces_of(shares, share_of(shares.count(), threads, i));
        REQUIRE(pieces.size() <= 3);
        for (const ProductPiece& piece : pieces) {
          REQUIRE(piece.rows.last - piece.rows.first >= std::min<std::int64_t>(rows, 16));
        }
      }
    }
  }
}

/// What linear and query_key_value make of the same x and weights of that type.
std::vector<Values> products(DType dtype, std::size_t rows, int threads) {
  const std::size_t width = 75, out = 3 * width;
  const auto n_rows = static_cast<std::int64_t>(rows), columns = static_cast<std::int64_t>(width);
  const std::unique_ptr<Device> device = make_cpu_device(threads);
  const Tensor x = upload(*device, {n_rows, columns}, random_values(rows * width, 1));
  const Weight weight = upload_weight(*device, random_values(width * out, 2), width, out, dtype);
  const Tensor bias = upload(*device, {3 * columns}, random_values(out, 3));
  Tensor result = upload(*device, {n_rows, 3 * columns}, random_values(rows * out, 4));
  device->linear(x, {}, weight, bias, Epilogue::kAdd, result);
  Tensor queries = result_tensor(*device, {n_rows, columns});
  KeysValues keys_values{result_tensor(*device, {1, 3, n_rows, columns / 3}),
                         result_tensor(*device, {1, 3, n_rows, columns / 3})};
  device->query_key_value(make_batch(*device, {{0, static_cast<int>(rows)}}), x, {}, weight, bias, queries,
                          keys_values);
  return {download(*device, result), download(*device, queries), download(*device, keys_values.keys),
          download(*device, keys_values.values)};
}

TEST_CASE("the number of threads changes no bit of a product, in any type of weights") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt8, DType::kInt4}) {
    for (const std::size_t rows : {1u, 8u, 31u, 32u, 33u, 64u, 129u, 513u}) {
      const auto want = products(dtype, rows, 1);
      for (const int threads : {2, 3, 5, 8, 16, 33}) {
        CAPTURE(to_string(dtype));
        CAPTURE(rows);
        CAPTURE(threads);
        const auto got = products(dtype, rows, threads);
        for (std::size_t i = 0; i < want.size(); ++i) CHECK(same_bits(got[i], want[i]));
        REQUIRE(std::none_of(got[0].begin(), got[0].end(), [](float value) { return std::isnan(value); }));
      }
    }
  }
}

}  // namespace
}  // namespace staircase
