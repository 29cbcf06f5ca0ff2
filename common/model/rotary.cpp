#include "common/model/rotary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <string>

#include "common/base/error.h"
#include "common/base/json_file.h"

namespace staircase {
namespace {

constexpr double kLargestContext = 1 << 24;

/// Llama 3.1's scaling for long texts (Meta's reference code, apply_scaling).
double stretched(double speed, const Llama3Scaling& scaling) {
  if (scaling.factor == 1.0) return speed;  // unchanged to the last bit
  const double turns = scaling.context * speed / (2.0 * std::numbers::pi);
  if (turns > scaling.high) return speed;
  if (turns < scaling.low) return speed / scaling.factor;
  const double smooth = (turns - scaling.low) / (scaling.high - scaling.low);
  return (1.0 - smooth) * speed / scaling.factor + smooth * speed;
}

/// The dictionary that applies: rope_scaling, or rope_parameters if rope_scaling is missing or empty
/// (transformers, convert_rope_params_to_dict).
Settings rope_settings(const Settings& settings, const RotaryKeys& keys = {}) {
  const nlohmann::json* scaling = settings.find("rope_scaling");
  const bool replaces = keys.scales && scaling && !scaling->empty();
  const char* const name = replaces ? "rope_scaling" : "rope_parameters";
  const Settings rope = settings.object(name);
  const nlohmann::json* values = settings.find(name);
  const auto is_object = [](const nlohmann::json& value) { return value.is_object(); };
  if (keys.layers != nullptr && !replaces) {
    if (values && !std::ranges::all_of(*values, is_object)) {
      throw Error("{}: rope_parameters is {}, not a dictionary for each type of layers", settings.file(),
                  shown(*values));
    }
    return rope.object(keys.layers);
  }
  if (keys.layers != nullptr && settings.object("rope_parameters").find(keys.layers)) {
    throw Error("{} has a rope_scaling and rope_parameters.{}, but may have only one of them",
                settings.file(), keys.layers);
  }
  if (values && std::ranges::any_of(*values, is_object)) {
    throw Error("{}: {} has several rotations, and only one rotation for all layers is supported",
                settings.file(), name);
  }
  return rope;
}

/// The type of the rotation. Folders have its older key, its newer key, or both.
std::string type_of(const Settings& rope) {
  return rope.text_or("rope_type", rope.text_or("type", "default"));
}

/// The number of positions that the model was trained with before its rotation was scaled.
double original_context(const Settings& settings, const Settings& rope) {
  const std::string original = "original_max_position_embeddings";
  const Settings& place = settings.find(original) ? settings : rope;
  return place.find(original) ? place.positive(original) : settings.positive("max_position_embeddings");
}

/// YaRN's scaling (Peng et al. 2023, section 3). Like Llama 3.1's scaling, it slows the slow pairs by
/// `factor` and keeps the fast ones. Between the two, the speed changes evenly from pair to pair.
struct Yarn {
  Yarn(const Settings& settings, const Settings& rope, int size, double theta) {
    const double context = original_context(settings, rope);
    factor = rope.positive_or("factor", settings.positive("max_position_embeddings") / context);
    stretched_context = factor * context;
    const double fast = rope.positive_or("beta_fast", 32.0), slow = rope.positive_or("beta_slow", 1.0);
    if (fast < slow) {
      throw Error("{}: beta_fast is {}, less than beta_slow, which is {}", rope.file(), fast, slow);
    }
    // The pair that rotates this often within the original context.
    const auto pair_of = [&](double turns) {
      return size * std::log(context / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
    };
    first = pair_of(fast), last = pair_of(slow);
    if (rope.boolean_or("truncate", true)) first = std::floor(first), last = std::ceil(last);
    first = std::max(first, 0.0), last = std::min(last, size - 1.0);
    if (first == last) last += 0.001;  // as in transformers
    const auto gain = [&](double scale) {
      return factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
    };
    // Section 3.4: the softmax gets a temperature, which is part of the rotations of queries and keys.
    const bool both = rope.find("mscale") && rope.find("mscale_all_dim");
    length = rope.positive_or(
        "attention_factor",
        both ? gain(rope.positive("mscale")) / gain(rope.positive("mscale_all_dim")) : gain(1.0));
  }

  double slowed(double speed, int pair) const {
    const double share = std::clamp((pair - first) / (last - first), 0.0, 1.0);
    return share * speed / factor + (1.0 - share) * speed;
  }

  double factor, stretched_context, first, last, length;
};

Llama3Scaling rotary_scaling(const Settings& settings, const Settings& rope) {
  const std::string kind = type_of(rope);
  if (kind != "default" && kind != "llama3") {
    throw Error("{}: the rotary positions are of type {}, and only default and llama3 are supported",
                settings.file(), kind);
  }
  if (kind == "default") {
    rope.require("factor", {1.0});
    return {};
  }
  const Llama3Scaling scaling{.factor = rope.positive("factor"),
                              .low = rope.positive("low_freq_factor"),
                              .high = rope.positive("high_freq_factor"),
                              .context = original_context(settings, rope)};
  if (scaling.high <= scaling.low) {
    throw Error("{}: high_freq_factor is {}, not more than low_freq_factor, which is {}", rope.file(),
                scaling.high, scaling.low);
  }
  return scaling;
}

}  // namespace

Llama3Scaling rotary_scaling(const Settings& settings) {
  return rotary_scaling(settings, rope_settings(settings));
}

Rotary::Rotary(const Settings& settings, int head_size, const RotaryKeys& keys) {
  const Settings rope = rope_settings(settings, keys);
  if (const std::string kind = type_of(rope);
      kind != "default" && kind != "linear" && kind != "llama3" && kind != "yarn") {
    throw Error(
        "{}: the rotary positions are of type {}, and only default, linear, llama3 and yarn are supported",
        settings.file(), kind);
  }
  const auto value = [&](const char* name, const char* own, const char* other, double fallback) {
    const double number = rope.positive_or(name, settings.positive_or(own, fallback));
    if (!rope.find(name) && !settings.find(own) && settings.object("rope_parameters").find(name)) {
      throw Error("{}: {} is only in rope_parameters, which rope_scaling replaces; move it to rope_scaling",
                  settings.file(), name);
    }
    if (settings.positive_or(other, number) != number) {
      throw Error("{}: {} is {}, but this family reads {}, which is {}", settings.file(), other,
                  settings.positive(other), own, number);
    }
    return number;
  };
  theta_ = value("rope_theta", keys.theta, keys.other_theta, keys.usual_theta);
  const double share = value("partial_rotary_factor", keys.share, keys.other_share, keys.usual_share);
  const int size = static_cast<int>(head_size * share);
  if (size < 2 || size % 2 != 0 || size > head_size) {
    throw Error(
        "{}: {} of the {} features of a head would rotate, but it must be an even number from 2 to {}",
        settings.file(), size, head_size, head_size);
  }
  for (int i = 0; i < size; i += 2) speeds_.push_back(std::pow(theta_, -static_cast<double>(i) / size));
  scale(settings, rope);
}

void Rotary::scale(const Settings& settings, const Settings& rope) {
  const std::string kind = type_of(rope);
  if (kind == "linear") {  // Chen et al. 2023, section 2.3: position interpolation
    const double factor = rope.positive("factor");
    for (double& speed : speeds_) speed /= factor;
  } else if (kind == "yarn") {
    const Yarn yarn(settings, rope, size(), theta_);
    for (int pair = 0; double& speed : speeds_) speed = yarn.slowed(speed, pair++);
    length_ = yarn.length;
    context_ = static_cast<int>(std::min(yarn.stretched_context, kLargestContext));
  } else {
    const Llama3Scaling scaling = rotary_scaling(settings, rope);
    for (double& speed : speeds_) speed = stretched(speed, scaling);
  }
}

void Rotary::divide_speeds(std::span<const float> factors) {
  for (std::size_t i = 0; i < speeds_.size(); ++i) speeds_[i] /= static_cast<double>(factors[i]);
}

void Rotary::rotation(int position, std::span<float> cosines_and_sines) const {
  const std::size_t pairs = speeds_.size();
  for (std::size_t i = 0; i < pairs; ++i) {
    const double angle = speeds_[i] * position;
    cosines_and_sines[i] = static_cast<float>(length_ * std::cos(angle));
    cosines_and_sines[pairs + i] = static_cast<float>(length_ * std::sin(angle));
  }
}

}  // namespace staircase
