#include "common/model/rotary.h"

#include <cmath>
#include <cstddef>
#include <numbers>

#include "common/base/error.h"

namespace staircase {
namespace {

/// Llama 3.1's scaling for long texts (Meta's reference code, apply_scaling).
double stretched(double speed, const RotaryScaling& scaling) {
  if (scaling.factor == 1.0) return speed;  // to the bit
  const double turns = scaling.context * speed / (2.0 * std::numbers::pi);
  if (turns > scaling.high) return speed;
  if (turns < scaling.low) return speed / scaling.factor;
  const double smooth = (turns - scaling.low) / (scaling.high - scaling.low);
  return (1.0 - smooth) * speed / scaling.factor + smooth * speed;
}

Settings rope_settings(const Settings& settings) {
  return settings.object(settings.find("rope_parameters") ? "rope_parameters" : "rope_scaling");
}

}  // namespace

RotaryScaling rotary_scaling(const Settings& settings) {
  const Settings rope = rope_settings(settings);
  // Folders have the older name of the type, the newer one, or both.
  const std::string kind = rope.text_or("rope_type", rope.text_or("type", "default"));
  if (kind != "default" && kind != "llama3") {
    throw Error("{}: the rotary positions are of type {}, and only default and llama3 are supported",
                settings.file(), kind);
  }
  if (kind == "default") return {};
  const RotaryScaling scaling{.factor = rope.positive_or("factor", 8.0),
                              .low = rope.positive_or("low_freq_factor", 1.0),
                              .high = rope.positive_or("high_freq_factor", 4.0),
                              .context = rope.positive_or("original_max_position_embeddings", 8192.0)};
  if (scaling.high <= scaling.low) {
    throw Error("{}: high_freq_factor is {}, not more than low_freq_factor, which is {}", rope.file(),
                scaling.high, scaling.low);
  }
  return scaling;
}

Rotary::Rotary(const Settings& settings, int head_size, double partial) {
  const Settings rope = rope_settings(settings);
  const RotaryScaling scaling = rotary_scaling(settings);
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
    speeds_.push_back(stretched(speed, scaling));
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
