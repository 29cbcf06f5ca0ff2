#include "common/model/rotary.h"

#include <cmath>
#include <cstddef>
#include <numbers>

#include "common/base/error.h"

namespace staircase {
namespace {

/// Llama 3.1's stretch for long texts (Meta's reference code, apply_scaling): pairs that turn more than
/// high_freq_factor times within the context of the first training keep their speed, those that turn less
/// than low_freq_factor times are slowed by `factor`, and between the two the speed changes smoothly.
double stretched(double speed, const Settings& rope) {
  const double factor = rope.positive_or("factor", 8.0);
  const double low = rope.positive_or("low_freq_factor", 1.0),
               high = rope.positive_or("high_freq_factor", 4.0);
  const double context = rope.positive_or("original_max_position_embeddings", 8192.0);
  if (high <= low) {
    throw Error("{}: high_freq_factor is {}, not more than low_freq_factor, which is {}", rope.file(), high,
                low);
  }
  const double turns = context * speed / (2.0 * std::numbers::pi);
  if (turns > high) return speed;
  if (turns < low) return speed / factor;
  const double smooth = (turns - low) / (high - low);
  return (1.0 - smooth) * speed / factor + smooth * speed;
}

}  // namespace

Rotary::Rotary(const Settings& settings, int head_size, double partial) {
  const Settings rope =
      settings.object(settings.find("rope_parameters") ? "rope_parameters" : "rope_scaling");
  // Folders have the older name of the kind, the newer one, or both.
  std::string kind = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (kind != "default" && kind != "llama3") {
    throw Error("{}: the rotary positions are of type {}, and only default and llama3 are supported",
                settings.file(), kind);
  }
  theta_ = rope.positive_or(
      "rope_theta", settings.positive_or("rope_theta", settings.positive_or("rotary_emb_base", 10000.0)));
  partial = rope.positive_or(
      "partial_rotary_factor",
      settings.positive_or("partial_rotary_factor", settings.positive_or("rotary_pct", partial)));
  const int size = static_cast<int>(head_size * partial);
  if (size < 2 || size % 2 != 0 || size > head_size) {
    throw Error("{}: {} of the {} features of a head would turn, not an even number from 2 to {}",
                settings.file(), size, head_size, head_size);
  }
  for (int i = 0; i < size; i += 2) {
    const double speed = std::pow(theta_, -static_cast<double>(i) / size);
    speeds_.push_back(kind == "llama3" ? stretched(speed, rope) : speed);
  }
}

void Rotary::divide_speeds(std::span<const float> factors) {
  for (std::size_t i = 0; i < speeds_.size(); ++i) speeds_[i] /= static_cast<double>(factors[i]);
}

void Rotary::turn(int position, std::span<float> cosines_and_sines) const {
  const std::size_t pairs = speeds_.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const double angle = speeds_[i] * position;
    cosines_and_sines[i] = static_cast<float>(std::cos(angle));
    cosines_and_sines[pairs + i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace staircase
