// The definition: a query has a score for each position, those of later tokens become -infinity, and the
// softmax gives them a weight of 0.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/rungs/cpu/prefill_attention/prefill_attention.h"

namespace staircase::rungs::prefill_attention {
namespace {

void attend(const Prompt& p, std::int64_t token, std::int64_t head, std::vector<float>& scores, float* out) {
  const std::int64_t size = p.shape.head_size;
  const float* const query = p.query(token, head);
  const float* key = p.keys + p.cache(head);
  const float* value = p.values + p.cache(head);
  for (float& score : scores) {
    score = 0.0f;
    for (std::int64_t f = 0; f < size; ++f) score += query[f] * key[f];
    score *= scale_of(p.shape);
    key += size;
  }
  std::fill(scores.begin() + p.seen(token), scores.end(), -std::numeric_limits<float>::infinity());
  const float largest = *std::ranges::max_element(scores);
  float sum = 0.0f;
  for (float& score : scores) sum += score = std::exp(score - largest);
  std::fill_n(out, size, 0.0f);
  for (const float weight : scores) {
    for (std::int64_t f = 0; f < size; ++f) out[f] += weight / sum * value[f];
    value += size;
  }
}

void run(const Prompt& p, ThreadTeam&, float* out) {
  std::vector<float> scores(static_cast<std::size_t>(p.shape.positions));
  for (std::int64_t head = 0; head < p.shape.n_head; ++head) {
    for (std::int64_t token = 0; token < p.tokens; ++token)
      attend(p, token, head, scores, out + p.place(token, head));
  }
}

}  // namespace

constexpr PrefillRung kPlain{"1-plain", "all scores of a query, then the mask", run};

}  // namespace staircase::rungs::prefill_attention
