#include "common/measure/logit_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/message.h"

namespace staircase {

namespace {

double seconds_of(const std::function<void()>& work) {
  double seconds = 0.0;
  {
    const PartTimes::Watch watch(seconds);
    work();
  }
  return seconds;
}

}  // namespace

void compare_logits(std::span<const float> plain, std::span<const float> engine) {
  float largest = 0.0f;
  for (std::size_t i = 0; i < plain.size(); ++i) largest = std::max(largest, std::abs(plain[i] - engine[i]));
  say(fmt::format("{} logits differ by at most {:.1e}", plain.size(), largest));
}

void compare_logits(const std::function<std::vector<float>()>& plain,
                    const std::function<std::span<const float>()>& engine, const PartTimes& times) {
  std::vector<float> ours;
  std::span<const float> theirs;
  // The engine runs first: it rejects a text that is too long, but plain loops would compute it.
  double engine_seconds = std::numeric_limits<double>::infinity();
  for (int turn = 0; turn < 3; ++turn)
    engine_seconds = std::min(engine_seconds, seconds_of([&] { theirs = engine(); }));
  const double plain_seconds = seconds_of([&] { ours = plain(); });
  compare_logits(ours, theirs);
  say(fmt::format("plain loops {:.1f} ms, the engine {:.2f} ms: {:.0f} times as fast", 1e3 * plain_seconds,
                  1e3 * engine_seconds, plain_seconds / engine_seconds));
  for (const auto& [part, seconds] : times.seconds())
    say(fmt::format("{:4.0f} %  {}", 100.0 * seconds / plain_seconds, part));
}

}  // namespace staircase
