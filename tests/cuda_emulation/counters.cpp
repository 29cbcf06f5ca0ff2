// What the kernels ask of memory, in shapes of gpt2 (768 features, 12 heads) and of today's models, on a GPU
// with 132 multiprocessors. Tests hold the numbers that decide how fast a kernel is; the table shows all of
// them. Each is counted, none is a measurement.
//
// Only here does every access count, so only here do bank conflicts and plain loads show.
#include "tests/cuda_emulation/counters.h"

#include <doctest/doctest.h>

#include <cstdio>

#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

using cuda_emulation::CountedLaunch;
using cuda_emulation::Traffic;
using Launches = std::vector<CountedLaunch>;

constexpr std::size_t kWidth = 768, kHeads = 12, kHeadSize = 64;
constexpr std::int64_t kCapacity = 1024;
/// Of a key and a value in each head, in 16 bits; of the weights that follow attention.
constexpr std::uint64_t kKeysOfPosition = 2 * 2 * kWidth, kNextWeights = 2 * kWidth * 5 * kWidth;

/// A GPU with as many multiprocessors as an H200.
Device& device() {
  static const std::unique_ptr<Device> gpu = [] {
    cuda_emulation::settings.multiprocessors = 132;
    return make_cuda_device();
  }();
  return *gpu;
}

/// The launches of `work`, which has its operands on the device already.
template <typename Work>
Launches launches_of(const Work& work) {
  cuda_emulation::Counters counters;
  work();
  download(device(), upload(device(), {1}, {0.0f}));  // waits
  Launches launches = counters.launches();
  std::erase_if(launches, [](const CountedLaunch& launch) { return launch.kernel.starts_with("convert"); });
  return launches;
}

Norm norm_of(NormKind kind, std::size_t width) {
  Norm norm{kind, {}, {}, 1e-5f};
  if (kind != NormKind::kNone) norm.weight = upload(device(), shape_of(1, width), random_values(width, 5));
  if (kind == NormKind::kLayer) norm.bias = upload(device(), shape_of(1, width), random_values(width, 6));
  return norm;
}

Launches linear(std::size_t rows, std::size_t in, std::size_t out, DType dtype, NormKind kind,
                Epilogue epilogue) {
  const std::size_t width = epilogue == Epilogue::kSiluGate ? out / 2 : out;
  const Tensor x = upload(device(), shape_of(rows, in), random_values(rows * in, 1));
  const Weight weight = upload_weight(device(), random_values(in * out, 2), in, out, dtype);
  const Tensor bias = upload(device(), shape_of(1, out), random_values(out, 3));
  Tensor result = upload(device(), shape_of(rows, width), random_values(rows * width, 4));
  const Norm norm = norm_of(kind, in);
  return launches_of([&] { device().linear(x, norm, weight, bias, epilogue, result); });
}

/// Keys and values of one sequence.
KeysValues cache_of(std::size_t kv_heads, DType dtype) {
  const Shape shape{1, static_cast<std::int64_t>(kv_heads), kCapacity, kept_size(dtype, kHeadSize)};
  if (is_quantized(dtype)) {
    const auto filled = [&] {
      Tensor tensor = device().allocate(dtype, shape);
      device().copy_from_host(std::vector<std::int32_t>(tensor.bytes() / 4, 0x01010101), tensor);
      return tensor;
    };
    return {filled(), filled()};
  }
  const Values values = random_values(element_count(shape), 7);
  return {upload_as(dtype, device(), shape, values), upload_as(dtype, device(), shape, values)};
}

Launches query_key_value() {
  KeysValues cache = cache_of(kHeads, DType::kBFloat16);
  const Tensor x = upload(device(), shape_of(1, kWidth), random_values(kWidth, 1));
  const Weight weight =
      upload_weight(device(), random_values(3 * kWidth * kWidth, 2), kWidth, 3 * kWidth, DType::kBFloat16);
  const Tensor bias = upload(device(), shape_of(1, 3 * kWidth), random_values(3 * kWidth, 3));
  Tensor queries = result_tensor(device(), shape_of(1, kWidth));
  const Norm norm = norm_of(NormKind::kLayer, kWidth);
  const Batch batch = make_batch(device(), {{17, 1}});
  return launches_of([&] { device().query_key_value(batch, x, norm, weight, bias, queries, cache); });
}

/// With the weights of the two products that follow, [768, 768] and [768, 3072], where they are announced.
Launches attention(int start, int count, std::size_t kv_heads, DType dtype, bool announces = false) {
  const KeysValues cache = cache_of(kv_heads, dtype);
  const auto rows = static_cast<std::size_t>(count);
  const Tensor queries = upload(device(), shape_of(rows, kWidth), random_values(rows * kWidth, 1));
  Tensor out = result_tensor(device(), shape_of(rows, kWidth));
  const Batch batch = make_batch(device(), {{start, count}});
  const auto weight = [&](std::size_t outputs) {
    return upload_weight(device(), Values(kWidth * outputs), kWidth, outputs, DType::kBFloat16);
  };
  const Weight next = announces ? weight(kWidth) : Weight(),
               after_next = announces ? weight(4 * kWidth) : Weight();
  return launches_of([&] {
    device().announce(next, after_next);
    device().attention(batch, queries, cache, out);
  });
}

Launches split_heads(DType dtype) {
  constexpr std::size_t kKvHeads = 4, kColumns = (kHeads + 2 * kKvHeads) * kHeadSize;
  KeysValues cache = cache_of(kKvHeads, dtype);
  const HeadRule rule{norm_of(NormKind::kRms, kHeadSize), norm_of(NormKind::kRms, kHeadSize),
                      upload(device(), shape_of(1, kHeadSize), random_values(kHeadSize, 8))};
  const Tensor projected = upload(device(), shape_of(1, kColumns), random_values(kColumns, 1));
  Tensor queries = result_tensor(device(), shape_of(1, kWidth));
  const Batch batch = make_batch(device(), {{17, 1}});
  return launches_of([&] { device().split_heads(batch, projected, rule, queries, cache); });
}

Launches embedding() {
  const Weight table = upload_weight(device(), random_values(50 * kWidth, 1), kWidth, 50, DType::kBFloat16);
  const Tensor positions = upload(device(), shape_of(20, kWidth), random_values(20 * kWidth, 2));
  Tensor out = result_tensor(device(), shape_of(1, kWidth));
  const Batch batch = make_batch(device(), {{17, 1}}, {7});
  return launches_of([&] { device().embedding(batch, table, positions, out); });
}

Launches normalize() {
  const Tensor x = upload(device(), shape_of(8, kWidth), random_values(8 * kWidth, 1));
  Tensor out = result_tensor(device(), shape_of(8, kWidth));
  const Norm norm = norm_of(NormKind::kLayer, kWidth);
  return launches_of([&] { device().normalize(x, norm, out); });
}

Launches gather_rows() {
  const Tensor x = upload(device(), shape_of(8, kWidth), random_values(8 * kWidth, 1)),
               rows = upload_ints(device(), {5, 2});
  Tensor out = result_tensor(device(), shape_of(2, kWidth));
  return launches_of([&] { device().gather_rows(x, rows, out); });
}

/// Of the vocabulary of gpt2.
Launches argmax() {
  const Tensor x = upload(device(), shape_of(2, 50257), random_values(2 * 50257, 1));
  Tensor out = upload_ints(device(), {0, 0});
  return launches_of([&] { device().argmax(x, out); });
}

/// For a top-k of 50.
Launches k_largest() {
  const Tensor x = upload(device(), shape_of(2, 50257), random_values(2 * 50257, 1));
  Tensor out = result_tensor(device(), shape_of(2, 129)).viewed_as(DType::kInt32, shape_of(2, 129));
  return launches_of([&] { device().k_largest(x, 64, out); });
}

Launches copy_positions() {
  KeysValues cache = cache_of(kHeads, DType::kBFloat16), to = cache_of(kHeads, DType::kBFloat16);
  return launches_of([&] { device().copy_positions(cache.keys, 8, 16, to.keys, 0); });
}

/// A matrix that is stored with its inputs first, as those of gpt2 are.
Launches load(DType dtype) {
  const Values values = random_values(kWidth * 96, 1);
  return launches_of([&] { upload_weight(device(), values, kWidth, 96, dtype); });
}

/// Limits of one launch: how large a share of the bytes it reads before it waits, and what may cost time.
struct Limits {
  double early_streams = 0.0, early_others = 0.0;
  double sectors_read = 1.0, sectors_written = 1.0;  ///< of the least possible; streams: always 1
  double barriers = 0.0;                             ///< that a block passes
  double conflicts = 0.0;                            ///< of banks, in a block
  std::uint64_t prefetched = 0;                      ///< bytes, all of them before the wait
};

struct Row {
  const char* what;
  Launches launches;
  std::vector<Limits> limits;  ///< of each launch
};

/// What a token of gpt2 launches; what a small batch, verified drafts and a prefill launch besides; and what
/// models after gpt2 do.
std::vector<Row> rows() {
  return {
      {"embedding", embedding(), {{}}},
      {"norm, queries, keys, values", query_key_value(), {{1.0, 0.0004, 2.0}}},
      {"attention, 512 positions",
       attention(511, 1, kHeads, DType::kBFloat16),
       {{0.0, 0.0, 1.0, 1.0, 3.5, 80.0, kKeysOfPosition * 511}}},
      // A head of 64 bytes and its scale are no whole sectors, and each lane loads the scale of another
      // value.
      {"the same in int8", attention(511, 1, kHeads, DType::kInt8), {{0.0, 0.0, 1.79, 1.0, 3.5}}},
      // Nor are 32 bytes and the ends of groups after them. To rotate queries and results takes barriers.
      {"the same in int4",
       attention(511, 1, kHeads, DType::kInt4),
       {{0.0, 0.0, 1.52, 1.0, 7.5, 92.0, kKeysOfPosition * 511 * 3 / 8}}},
      {"512 positions, with the next weights",
       attention(511, 1, kHeads, DType::kBFloat16, true),
       {{0.0, 0.0, 1.0, 1.0, 3.5, 80.0, kKeysOfPosition * 511 + kNextWeights}}},
      {"the same, 64 positions",
       attention(63, 1, kHeads, DType::kBFloat16, true),
       {{0.0, 0.0, 1.0, 1.0, 0.5, 10.0, kKeysOfPosition * 63 + kNextWeights}}},
      {"norm, 768 to 768, GELU",
       linear(1, 768, 768, DType::kBFloat16, NormKind::kLayer, Epilogue::kGelu),
       {{1.0, 0.0004, 2.0}}},
      {"3072 to 192, residual",
       linear(1, 3072, 192, DType::kBFloat16, NormKind::kNone, Epilogue::kAdd),
       {{1.0, 0.0, 2.0, 1.0, 2.0}}},
      {"norm, 768 to 768, int8",
       linear(1, 768, 768, DType::kInt8, NormKind::kLayer, Epilogue::kStore),
       {{1.0, 0.02, 2.0}}},
      {"norm, 768 to 768, int4",
       linear(1, 768, 768, DType::kInt4, NormKind::kLayer, Epilogue::kStore),
       {{1.0, 0.02, 2.0}}},
      {"a gated product",
       linear(1, 768, 512, DType::kBFloat16, NormKind::kRms, Epilogue::kSiluGate),
       {{1.0, 0.0004, 2.0}}},
      {"split heads", split_heads(DType::kBFloat16), {{}}},
      {"the same in int4", split_heads(DType::kInt4), {{0.0, 0.0, 1.0, 1.0, 0.0, 32.0}}},
      {"attention, 3 heads share keys",
       attention(511, 1, 4, DType::kBFloat16),
       {{0.0, 0.0, 1.0, 1.0, 5.5, 304.0, kKeysOfPosition / 3 * 511}}},
      {"8 rows, norm",
       linear(8, 768, 192, DType::kBFloat16, NormKind::kLayer, Epilogue::kStore),
       {{1.0, 0.0, 1.5, 1.0, 2.0, 192.0}}},
      {"4 rows in int8, norm",
       linear(4, 768, 192, DType::kInt8, NormKind::kLayer, Epilogue::kStore),
       {{1.0, 0.0, 1.5, 1.0, 2.0, 144.0}}},
      {"8 rows in int4, norm",
       linear(8, 768, 192, DType::kInt4, NormKind::kLayer, Epilogue::kStore),
       {{1.0, 0.0, 1.5, 1.0, 2.0, 192.0}}},
      {"8 rows in float16",
       linear(8, 768, 192, DType::kFloat16, NormKind::kNone, Epilogue::kStore),
       {{0.0, 0.0, 2.0, 8.0}}},
      {"64 rows, norm, GELU",
       linear(64, 768, 192, DType::kBFloat16, NormKind::kLayer, Epilogue::kGelu),
       {{0.0, 0.4, 1.0, 1.0, 4.0}, {}}},
      {"33 rows in int8", linear(33, 768, 192, DType::kInt8, NormKind::kNone, Epilogue::kStore), {{}}},
      {"attention, 64 queries", attention(0, 64, kHeads, DType::kBFloat16), {{0.0, 0.0, 1.0, 2.0, 0.5}}},
      {"the same in float32", attention(0, 64, kHeads, DType::kFloat32), {{0.0, 0.0, 1.0, 4.0, 4.0}}},
      {"the same in int8", attention(0, 64, kHeads, DType::kInt8), {{0.0, 0.0, 1.31, 4.0, 4.0}}},
      {"the same in int4", attention(0, 64, kHeads, DType::kInt4), {{0.0, 0.0, 1.0, 1.0, 13.4, 982.0}}},
      {"normalize", normalize(), {{0.0, 0.4, 1.0, 1.0, 4.0}}},
      {"gather_rows", gather_rows(), {{}}},
      // The second row begins within a sector, so a warp reads five instead of four there.
      {"argmax of two rows of logits", argmax(), {{0.0, 0.0, 1.13, 1.0, 1.0}}},
      {"64 largest of two rows of logits", k_largest(), {{0.0, 0.0, 1.14, 1.12, 38.0, 245.0}}},
      {"copy_positions", copy_positions(), {{0.0, 0.0, 1.0, 1.0, 1.0}}},
      {"load, inputs first", load(DType::kBFloat16), {{0.0, 0.0, 1.0, 1.0, 1.0}}},
      {"the same in int8", load(DType::kInt8), {{0.0, 0.0, 1.0, 2.4}}},
  };
}

double ratio(std::uint64_t part, std::uint64_t whole, double of_none) {
  return whole == 0 ? of_none : static_cast<double>(part) / static_cast<double>(whole);
}

TEST_CASE("no kernel asks more of memory than it must, nor later than it can") {
  std::puts(
      "| operation | kernel | blocks of threads | KB streamed | early | KB of others | early | sectors "
      "read "
      "| KB written | sectors written | barriers of a block | bank conflicts of a block | KB prefetched |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|");
  for (const Row& row : rows()) {
    INFO(std::string(row.what));
    REQUIRE(row.launches.size() == row.limits.size());
    for (std::size_t i = 0; i < row.launches.size(); ++i) {
      const CountedLaunch& launch = row.launches[i];
      const Limits& limits = row.limits[i];
      const double early_streams = ratio(launch.streams.early_bytes, launch.streams.bytes, 0.0),
                   early_others = ratio(launch.loads.early_bytes, launch.loads.bytes, 0.0),
                   stream_sectors = ratio(launch.streams.sectors, launch.streams.least_sectors, 1.0),
                   sectors_read = ratio(launch.loads.sectors, launch.loads.least_sectors, 1.0),
                   sectors_written = ratio(launch.stores.sectors, launch.stores.least_sectors, 1.0),
                   barriers = ratio(launch.barriers, launch.blocks, 0.0),
                   conflicts = ratio(launch.conflicts, launch.blocks, 0.0);
      std::printf(
          "| %s | %s | %u of %u | %.1f | %.1f %% | %.1f | %.1f %% | %.2f | %.1f | %.2f | %.1f | %.1f | %.1f "
          "|\n",
          row.what, launch.kernel.c_str(), launch.blocks, launch.threads,
          static_cast<double>(launch.streams.bytes) / 1e3, 100.0 * early_streams,
          static_cast<double>(launch.loads.bytes) / 1e3, 100.0 * early_others, sectors_read,
          static_cast<double>(launch.stores.bytes) / 1e3, sectors_written, barriers, conflicts,
          static_cast<double>(launch.prefetches.bytes) / 1e3);
      CAPTURE(launch.kernel);
      CHECK(launch.kernel != "?");
      CHECK(early_streams >= limits.early_streams);
      CHECK(early_others >= limits.early_others);
      CHECK(stream_sectors == 1.0);
      CHECK(sectors_read <= limits.sectors_read);
      CHECK(sectors_written <= limits.sectors_written);
      CHECK(barriers <= limits.barriers);
      CHECK(conflicts <= limits.conflicts);
      CHECK(launch.prefetches.bytes == limits.prefetched);
      CHECK(launch.prefetches.early_bytes == limits.prefetched);
    }
  }
}

TEST_CASE("results of many rows are loaded and stored four at a time") {
  // A request of a warp has up to 128 results of a row, so 192 are two.
  constexpr std::uint64_t kRequests = 64 * 2;
  const Launches gelu = linear(64, 768, 192, DType::kBFloat16, NormKind::kNone, Epilogue::kGelu);
  REQUIRE(!gelu.empty());
  CHECK(gelu.back().kernel == "finish_neighbours<StoreRow>");
  CHECK(gelu.back().loads.requests == 2 * kRequests);  // products and bias
  CHECK(gelu.back().stores.requests == kRequests);
  const Launches odd = linear(64, 768, 190, DType::kBFloat16, NormKind::kNone, Epilogue::kGelu);
  REQUIRE(!odd.empty());
  CHECK(odd.back().kernel == "finish<StoreRow>");
  CHECK(odd.back().stores.requests == 64 * 6);
}

}  // namespace
}  // namespace staircase
