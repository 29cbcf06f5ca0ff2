// Each thread computes some of the key heads with their queries. With three heads and two threads, one thread
// computes two heads and the other thread computes one. So the second thread is idle half of the time.
#include "kernels/rungs/cpu/attention/cache.h"
#include "kernels/rungs/cpu/attention/online_softmax.h"

namespace staircase::rungs::attention {
namespace {

class Threads final : public Attention {
 public:
  Threads(const AttentionShape& shape, const float* keys, const float* values, ThreadTeam& team)
      : shape_(shape), cache_(shape, keys, values, [](float key) { return key; }), team_(team) {}

  void run(const float* queries, float* out) override {
    const std::int64_t of_group = shape_.group() * shape_.head_size;
    parallel_ranges(team_, shape_.n_kv_head, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t kv_head = begin; kv_head < end; ++kv_head)
        attend(queries + kv_head * of_group, kv_head, out + kv_head * of_group);
    });
  }

  std::int64_t cache_bytes() const override { return cache_.bytes(); }

 private:
  /// queries and out [group, head_size]
  void attend(const float* queries, std::int64_t kv_head, float* out) const {
    const std::int64_t size = shape_.head_size;
    std::vector<OnlineSoftmax> softmax(static_cast<std::size_t>(shape_.group()), OnlineSoftmax(size));
    float scores[kBlock];
    for (std::int64_t first = 0; first < shape_.positions; first += kBlock) {
      const std::int64_t count = std::min(kBlock, shape_.positions - first);
      const float* query = queries;
      for (OnlineSoftmax& one : softmax) {
        score_panel(query, cache_.keys(kv_head, first / kBlock), count, size, scale_of(shape_), scores);
        one.add(scores, cache_.values(kv_head) + first * size, count);
        query += size;
      }
    }
    for (const OnlineSoftmax& one : softmax) {
      one.finish(out);
      out += size;
    }
  }

  AttentionShape shape_;
  PackedCache<float> cache_;
  ThreadTeam& team_;
};

}  // namespace

constexpr AttentionRung kThreads =
    attention_rung<Threads>("8-threads", "every core takes some of the key heads");

}  // namespace staircase::rungs::attention
