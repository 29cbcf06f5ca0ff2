#include "common/model/rotary.h"

#include <algorithm>
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

/// The dictionary that counts: rope_scaling, or rope_parameters if that is missing or empty (transformers,
/// convert_rope_params_to_dict).
Settings rope_settings(const Settings& settings) {
  const nlohmann::json* scaling = settings.find("rope_scaling");
  const char* const name = scaling && !scaling->empty() ? "rope_scaling" : "rope_parameters";
  const Settings rope = settings.object(name);
  const nlohmann::json* values = settings.find(name);
  if (values && std::ranges::any_of(*values, [](const auto& value) { return value.is_object(); })) {
    throw Error("{}: {} has several rotations, and only one rotation for all layers is supported",
                settings.file(), name);
  }
  return rope;
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
  if (kind == "default") {
    rope.require("factor", {1.0});
    return {};
  }
  const std::string original = "original_max_position_embeddings";
  const Settings& place = settings.find(original) ? settings : rope;
  const double context =
      place.find(original) ? place.positive(original) : settings.positive("max_position_embeddings");
  const RotaryScaling scaling{.factor = rope.positive("factor"),
                              .low = rope.positive("low_freq_factor"),
                              .high = rope.positive("high_freq_factor"),
                              .context = context};
  if (scaling.high <= scaling.low) {
    throw Error("{}: high_freq_factor is {}, not more than low_freq_factor, which is {}", rope.file(),
                scaling.high, scaling.low);
  }
  return scaling;
}

Rotary::Rotary(const Settings& settings, int head_size, const RotaryKeys& keys) {
  const Settings rope = rope_settings(settings);
  const RotaryScaling scaling = rotary_scaling(settings);
  const auto value = [&](const char* name, const char* own, const char* other, double fallback) {
    const double number = rope.positive_or(name, settings.positive_or(own, fallback));
    if (!rope.find(name) && !settings.find(own) && settings.object("rope_parameters").find(name)) {
      throw Error(
          "{}: {} is in rope_parameters only, which rope_scaling replaces; it belongs into rope_scaling",
          settings.file(), name);
    }
    if (settings.positive_or(other, number) != number) {
      throw Error("{}: {} is {}, but this family reads {}, which is {}", settings.file(), other,
                  settings.positive(other), own, number);
    }
    return number;
  };
  theta_ = value("rope_theta", keys.theta, keys.other_theta, 10000.0);
  const double share = value("partial_rotary_factor", keys.share, keys.other_share, keys.usual_share);
  const int size = static_cast<int>(head_size * share);
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

void Rotary::rotation(int position, std::span<float> cosines_and_sines) const {
  const std::size_t pairs = speeds_.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const double angle = speeds_[i] * position;
    cosines_and_sines[i] = static_cast<float>(std::cos(angle));
    cosines_and_sines[pairs + i] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace staircase
