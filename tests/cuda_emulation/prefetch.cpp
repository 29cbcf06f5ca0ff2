// What attention of a few queries prefetches before it waits: its older keys and values, and on blocks
// without keys the weights of the products that follow.
#include <doctest/doctest.h>

#include <map>

#include "tests/cuda_emulation/counters.h"
#include "tests/kernels/kernel_test.h"

namespace staircase {
namespace {

constexpr std::size_t kHeadSize = 64;

/// A GPU with as many multiprocessors as an H200, and with that much L2 cache.
std::unique_ptr<Device> make_gpu(int l2_bytes = 50 << 20) {
  const cuda_emulation::Settings before = cuda_emulation::settings;
  cuda_emulation::settings.multiprocessors = 132;
  cuda_emulation::settings.l2_bytes = l2_bytes;
  std::unique_ptr<Device> device = make_cuda_device();
  cuda_emulation::settings = before;
  return device;
}

/// Bytes of memory, each at most once.
class Bytes {
 public:
  void add(std::uintptr_t first, std::size_t count) {
    for (auto& [begin, end] : pieces_) overlaps_ = overlaps_ || (first < end && begin < first + count);
    pieces_.emplace_back(first, first + count);
  }
  bool overlaps() const { return overlaps_; }

  std::size_t of(const Tensor& tensor) const {
    const auto first = reinterpret_cast<std::uintptr_t>(tensor.data<void>()), last = first + tensor.bytes();
    std::size_t count = 0;
    for (const auto& [begin, end] : pieces_)
      count += std::max(std::min(end, last), first) - std::max(std::min(begin, last), first);
    return count;
  }
  std::size_t all() const {
    std::size_t count = 0;
    for (const auto& [begin, end] : pieces_) count += end - begin;
    return count;
  }
  bool has(const void* address) const {
    const auto place = reinterpret_cast<std::uintptr_t>(address);
    return std::any_of(pieces_.begin(), pieces_.end(),
                       [&](const auto& piece) { return piece.first <= place && place < piece.second; });
  }

 private:
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> pieces_;
  bool overlaps_ = false;
};

/// What the kernels of `work` prefetched before they waited. Whatever they prefetch later is an error.
template <typename Work>
Bytes prefetched(Device& device, const Work& work) {
  static Bytes* bytes = nullptr;
  download(device, upload(device, {1}, {0.0f}));  // waits
  Bytes all;
  bytes = &all;
  cuda_emulation::on_request = [](cuda_emulation::Access access, cuda_emulation::Memory, const void* address,
                                  std::size_t count, const void*) {
    if (access != cuda_emulation::Access::kPrefetch) return;
    CHECK(!cuda_emulation::processor.thread()->waited);
    bytes->add(reinterpret_cast<std::uintptr_t>(address), count);
  };
  work();
  download(device, upload(device, {1}, {0.0f}));
  cuda_emulation::on_request = nullptr;
  return all;
}

/// Attention of several sequences on caches of 1024 positions, in blocks of `block` of them; 0: in one.
struct Attention {
  std::vector<Sequence> sequences;
  std::size_t heads = 12, group = 1, block = 0;
  DType dtype = DType::kBFloat16;

  static constexpr std::size_t kCapacity = 1024;

  KeysValues cache(Device& device) const {
    const std::size_t kv_heads = heads / group, rows = sequences.size();
    const std::size_t size = block == 0 ? kCapacity : block, each = (kCapacity + size - 1) / size;
    const Shape shape{static_cast<std::int64_t>(rows * each), static_cast<std::int64_t>(kv_heads),
                      static_cast<std::int64_t>(size), kHeadSize};
    const Values values = random_values(element_count(shape), 7);
    KeysValues result{upload_as(dtype, device, shape, values), upload_as(dtype, device, shape, values)};
    if (block == 0) return result;
    std::vector<std::int32_t> table(rows * each);
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(table.size() - 1 - i);
    result.blocks = upload_ints(device, table)
                        .reshaped({static_cast<std::int64_t>(rows), static_cast<std::int64_t>(each)});
    return result;
  }

  /// Bytes of the keys of the passes before.
  std::size_t older_keys() const {
    std::size_t positions = 0;
    for (const Sequence& sequence : sequences) positions += static_cast<std::size_t>(sequence.start);
    return positions * heads / group * kHeadSize * size_of(dtype);
  }

  /// The result; announce(device) comes before it.
  template <typename Announce>
  Values run(Device& device, const KeysValues& keys_values, Bytes& bytes, const Announce& announce) const {
    std::size_t tokens = 0;
    for (const Sequence& sequence : sequences) tokens += static_cast<std::size_t>(sequence.count);
    const std::size_t width = heads * kHeadSize;
    const Tensor queries = upload(device, shape_of(tokens, width), random_values(tokens * width, 1));
    Tensor out = result_tensor(device, shape_of(tokens, width));
    const Batch batch = make_batch(device, sequences);
    bytes = prefetched(device, [&] {
      announce();
      device.attention(batch, queries, keys_values, out);
    });
    return download(device, out);
  }

  Values run(Device& device, const KeysValues& keys_values, Bytes& bytes) const {
    return run(device, keys_values, bytes, [] {});
  }
};

TEST_CASE("attention prefetches each older key and value once, before it waits, and no newer one") {
  const std::unique_ptr<Device> gpu = make_gpu();
  for (const Attention& attention :
       {Attention{{{511, 1}}}, Attention{{{511, 1}}, 12, 3},
        Attention{{{40, 1}, {700, 1}, {0, 1}, {1023, 1}}}, Attention{{{511, 1}}, 12, 1, 16},
        Attention{{{511, 1}, {90, 1}}, 12, 1, 24}, Attention{{{511, 1}, {90, 1}}, 4, 4, 16, DType::kFloat32},
        Attention{{{100, 3}}, 20, 10}}) {
    const KeysValues cache = attention.cache(*gpu);
    Bytes bytes;
    attention.run(*gpu, cache, bytes);
    CAPTURE(attention.older_keys());
    CHECK(!bytes.overlaps());
    // Of several tokens of a sequence, the first one has its keys, which is all older ones.
    CHECK(bytes.of(cache.keys) == attention.older_keys());
    CHECK(bytes.of(cache.values) == attention.older_keys());
    CHECK(bytes.all() == 2 * attention.older_keys());
    if (attention.block != 0) continue;
    const auto* const first = cache.keys.data<std::byte>();
    const std::size_t position = kHeadSize * size_of(attention.dtype),
                      start = static_cast<std::size_t>(attention.sequences[0].start);
    CHECK(bytes.has(first));
    CHECK(bytes.has(first + start * position - 1));
    CHECK(!bytes.has(first + start * position));
  }
}

TEST_CASE("blocks without keys prefetch the next weights once, as far as half of the L2 cache holds them") {
  const auto weights_of = [](Device& device, std::size_t outputs) {
    return upload_weight(device, Values(768 * outputs), 768, outputs, DType::kBFloat16);
  };
  struct Shape {
    Attention attention;
    int l2_bytes;
    std::size_t first, second;
  };
  constexpr std::size_t kFirst = 768 * 768 * 2, kSecond = 768 * 3072 * 2;
  for (const Shape& shape :
       {Shape{{{{511, 1}}}, 50 << 20, kFirst, kSecond}, Shape{{{{63, 1}}}, 50 << 20, kFirst, kSecond},
        Shape{{{{63, 1}, {63, 1}}}, 50 << 20, kFirst, kSecond},
        Shape{{{{63, 1}}}, 4 << 20, kFirst, (2 << 20) - kFirst}, Shape{{{{63, 1}}}, 1 << 20, 1 << 19, 0},
        Shape{{{{63, 1}}, 1}, 50 << 20, kFirst, kSecond},  // pieces for some threads only
        Shape{{{{63, 1}}}, 200000, 100000, 0},             // no whole number of pieces

        Shape{{{{1023, 1}}}, 50 << 20, 0, 0}}) {  // each block has keys
    const std::unique_ptr<Device> gpu = make_gpu(shape.l2_bytes);
    const KeysValues cache = shape.attention.cache(*gpu);
    const Weight first = weights_of(*gpu, 768), second = weights_of(*gpu, 3072);
    Bytes with, without;
    const Values alone = shape.attention.run(*gpu, cache, without);
    const Values result = shape.attention.run(*gpu, cache, with, [&] { gpu->announce(first, second); });
    CAPTURE(shape.attention.sequences[0].start);
    CHECK(result == alone);
    CHECK(!with.overlaps());
    CHECK(with.of(first.packed) == shape.first);
    CHECK(with.of(second.packed) == shape.second);
    CHECK(with.all() == without.all() + shape.first + shape.second);
    // They are for one attention.
    Bytes again;
    shape.attention.run(*gpu, cache, again);
    CHECK(again.all() == without.all());
  }
}

TEST_CASE(
    "whatever a block guesses before it waits, it names only memory of the GPU, and no result depends on "
    "it") {
  struct Restore {
    ~Restore() { cuda_emulation::guess = nullptr; }
  } const restore;
  const std::unique_ptr<Device> gpu = make_gpu();
  for (const std::size_t block : {0u, 16u, 24u}) {
    const Attention attention{{{40, 1}, {700, 2}, {0, 1}}, 12, 3, block};
    const KeysValues cache = attention.cache(*gpu);
    const Weight weight = upload_weight(*gpu, Values(768 * 768), 768, 768, DType::kBFloat16);
    Bytes bytes;
    cuda_emulation::guess = nullptr;
    const Values want = attention.run(*gpu, cache, bytes);
    for (int (*const guess)(int) :
         {+[](int) { return -1; }, +[](int) { return 0; }, +[](int) { return 1 << 28; },
          +[](int) { return -(1 << 28); }, +[](int number) { return number - 1; },
          +[](int number) { return number * 37 % 1500; }}) {
      cuda_emulation::guess = guess;
      CHECK(attention.run(*gpu, cache, bytes, [&] { gpu->announce(weight, {}); }) == want);
    }
  }
}

}  // namespace
}  // namespace staircase
