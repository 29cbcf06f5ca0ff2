// Compares two computations of logits: how far apart they are, how long each takes, and which parts take the
// time.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace staircase {

/// The time that each part of a computation takes.
class PartTimes {
 public:
  /// Adds the seconds of its own lifetime to a part.
  class Watch {
   public:
    explicit Watch(double& seconds) : seconds_(seconds) {}
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    ~Watch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

   private:
    double& seconds_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  /// `const auto watch = times.of("MLP");` measures until the end of the block.
  [[nodiscard]] Watch of(const std::string& part) { return Watch(seconds_[part]); }

  /// Seconds by part.
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  std::map<std::string, double> seconds_;
};

/// Prints the largest difference between two logits.
void compare_logits(std::span<const float> plain, std::span<const float> engine);

/// Prints the largest difference between two logits, the time of `plain`, the shortest of three times of the
/// engine, and the share of each part. `plain` is called once, after the engine has accepted the text, and
/// fills in `times`.
void compare_logits(const std::function<std::vector<float>()>& plain,
                    const std::function<std::span<const float>()>& engine, const PartTimes& times);

}  // namespace staircase
