#include "common/model/lead_passes.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/error.h"

namespace staircase {
namespace {

/// How long a rank waits for the others after its own work. All ranks compute the same amount, so they finish
/// together unless their machines do other work. mpirun may need two of these seconds to end the ranks
/// itself.
constexpr std::chrono::milliseconds kLongestWait(2200);

using Numbers = std::vector<std::int32_t>;

std::string to_text(const Numbers& numbers) {
  std::string text(numbers.size() * sizeof(std::int32_t), '\0');
  std::memcpy(text.data(), numbers.data(), text.size());
  return text;
}

Numbers to_numbers(const std::string& text) {
  Numbers numbers(text.size() / sizeof(std::int32_t));
  if (!text.empty()) std::memcpy(numbers.data(), text.data(), text.size());
  return numbers;
}

/// The sizes of a cache.
struct CacheShape {
  std::int32_t rows = 0;      ///< rows, or blocks of a paged cache
  std::int32_t capacity = 0;  ///< positions of each row or block
  std::int32_t table_rows = 0, table_width = 0;

  bool operator==(const CacheShape&) const = default;
};

/// Sends each pass of rank 0 to the other ranks: the number of its cache, and the blocks and new tokens of
/// each sequence. Also sends how many positions of each sequence the cache holds before them.
class Leader {
 public:
  Leader(Model& model, Ranks& ranks) : model_(model), ranks_(ranks) {}

  void send_pass(const ForwardPass& pass) {
    const auto n_sequences = static_cast<std::int64_t>(pass.sequences.size());
    const KeysValues layer = pass.cache.layer(0);
    Numbers numbers{static_cast<std::int32_t>(n_sequences)}, table;
    std::size_t width = 0;  // width of the block table
    if (pass.cache.keeps()) {
      const std::size_t number = caches_.try_emplace(&pass.cache, caches_.size()).first->second;
      CacheShape shape = {static_cast<std::int32_t>(layer.keys.dim(0)),
                          static_cast<std::int32_t>(layer.keys.dim(2))};
      if (layer.blocks.size() > 0) {
        shape.table_rows = static_cast<std::int32_t>(layer.blocks.dim(0));
        shape.table_width = static_cast<std::int32_t>(layer.blocks.dim(1));
        width = static_cast<std::size_t>(shape.table_width);
        table.resize(pass.sequences.size() * width);
        model_.device().copy_to_host(layer.blocks.rows(0, n_sequences),
                                     std::as_writable_bytes(std::span(table)));
      }
      numbers.insert(numbers.end(), {static_cast<std::int32_t>(number), shape.rows, shape.capacity,
                                     shape.table_rows, shape.table_width});
    } else {
      numbers.insert(numbers.end(), {-1, 0, 0, 0, 0});
    }
    for (std::size_t s = 0; s < pass.sequences.size(); ++s) {
      const std::span<const int> tokens = pass.sequences[s];
      std::span<const std::int32_t> blocks;  // the sequence's blocks in use
      if (width > 0 && !tokens.empty()) {
        const std::size_t size = static_cast<std::size_t>(layer.keys.dim(2)),
                          length = static_cast<std::size_t>(pass.starts[s]) + tokens.size();
        blocks = std::span(table).subspan(s * width, (length + size - 1) / size);
      }
      numbers.insert(numbers.end(), {pass.counts[s], pass.starts[s], static_cast<std::int32_t>(tokens.size()),
                                     static_cast<std::int32_t>(blocks.size())});
      numbers.insert(numbers.end(), tokens.begin(), tokens.end());
      numbers.insert(numbers.end(), blocks.begin(), blocks.end());
    }
    say(to_text(numbers));
  }

  void end() { say(""); }

 private:
  void say(const std::string& text) {
    ranks_.barrier();
    ranks_.broadcast(text);
  }

  Model& model_;
  Ranks& ranks_;
  std::map<const KvCache*, std::size_t> caches_;  // the caches and their numbers
};

/// A cache on another rank; rank 0 sets the lengths and blocks of its rows.
class LedCache : public KvCache {
 public:
  LedCache(Model& model, const CacheShape& shape)
      : shape_(shape),
        device_(model.device()),
        lengths_(static_cast<std::size_t>(std::max(shape.rows, shape.table_rows))) {
    if (shape.table_rows > 0) table_ = device_.allocate(DType::kInt32, {shape.table_rows, shape.table_width});
    const std::vector<std::int64_t> keys = model.kv_shape(shape.rows, shape.capacity);
    for (int l = 0; l < model.config().n_layer; ++l) {
      layers_.push_back(
          {device_.allocate(model.kv_dtype(), keys), device_.allocate(model.kv_dtype(), keys), table_});
    }
  }

  const CacheShape& shape() const { return shape_; }

  void set(int row, int length, std::span<const std::int32_t> blocks) {
    lengths_[static_cast<std::size_t>(row)] = length;
    if (blocks.empty()) return;
    Tensor line = table_.rows(row, 1);
    device_.copy_from_host(blocks, line);
  }

  int length(int row) const override { return lengths_[static_cast<std::size_t>(row)]; }
  void append(int row, int count) override { lengths_[static_cast<std::size_t>(row)] += count; }
  KeysValues layer(int index) override { return layers_[static_cast<std::size_t>(index)]; }
  void truncate(int row, int length) override { lengths_[static_cast<std::size_t>(row)] = length; }
  CacheUse use() const override { return {}; }

 private:
  CacheShape shape_;
  Device& device_;
  Tensor table_;
  std::vector<KeysValues> layers_;
  std::vector<int> lengths_;
};

/// Computes the passes that rank 0 sends.
void follow(Model& model, Ranks& ranks) {
  std::map<int, std::unique_ptr<LedCache>> caches;
  while (true) {
    ranks.barrier();
    const Numbers numbers = to_numbers(ranks.broadcast(""));
    if (numbers.empty()) return;
    std::span<const std::int32_t> rest = numbers;
    const auto next = [&rest](std::int32_t count) {
      const auto part = rest.first(static_cast<std::size_t>(count));
      rest = rest.subspan(part.size());
      return part;
    };
    const std::span<const std::int32_t> head = next(6);
    const CacheShape shape{head[2], head[3], head[4], head[5]};
    NoCache none;
    KvCache* cache = &none;
    LedCache* led = nullptr;
    if (head[1] >= 0) {
      std::unique_ptr<LedCache>& own = caches[head[1]];
      if (!own || own->shape() != shape) {
        own.reset();
        own = std::make_unique<LedCache>(model, shape);
      }
      cache = led = own.get();
    }
    std::vector<std::span<const int>> sequences;
    std::vector<int> counts;
    for (int row = 0; row < head[0]; ++row) {
      const std::span<const std::int32_t> sizes = next(4);
      counts.push_back(sizes[0]);
      sequences.push_back(next(sizes[2]));
      const std::span<const std::int32_t> blocks = next(sizes[3]);
      if (led != nullptr) led->set(row, sizes[1], blocks);
    }
    model.lazy_logits(sequences, counts, *cache);
  }
}

}  // namespace

void lead_passes(Model& model, Ranks& ranks, const std::function<void()>& work) {
  if (ranks.size() == 1) return work();
  if (const auto other = ranks.first_mismatch(static_cast<std::uint64_t>(model.config().n_positions))) {
    throw Error("--context differs: rank {} has a different value from rank 0", *other);
  }
  ranks.limit_waits(kLongestWait);
  if (ranks.rank() > 0) return follow(model, ranks);
  Leader leader(model, ranks);
  model.before_pass([&leader](const ForwardPass& pass) { leader.send_pass(pass); });
  work();
  model.before_pass({});
  leader.end();
}

}  // namespace staircase
