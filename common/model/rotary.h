// Rotary positions (Su et al. 2021, section 3.4): each pair of features rotates by an angle that grows with
// the position. The product of a query and a key then depends only on the difference of their positions.
#pragma once

#include <span>
#include <vector>

#include "common/model/llama3_scaling.h"
#include "common/model/settings.h"

namespace staircase {

/// Reads the scaling of type default or llama3 from config.json, in its older or newer spelling. Throws Error
/// for another type and for impossible values.
Llama3Scaling rotary_scaling(const Settings& settings);

/// The keys with which a family states its rotation outside the dictionaries rope_scaling and
/// rope_parameters. The `other_` names belong to another family; transformers ignores them in this one.
struct RotaryKeys {
  const char *theta = "rope_theta", *other_theta = "rotary_emb_base";
  const char *share = "partial_rotary_factor", *other_share = "rotary_pct";
  double usual_share = 1.0;  ///< default share of a head's features that rotate
  double usual_theta = 10000.0;
  /// The type of the layers that rotate like this, which has its own dictionary in rope_parameters; nullptr
  /// for all layers.
  const char* layers = nullptr;
  bool scales = true;  ///< whether rope_scaling applies to these layers
};

/// How fast each pair of features rotates, in radians per position. Pair i of n rotates by theta^(-i / n):
/// with theta = 10,000 and 32 pairs, the first pair rotates once in 6 positions, the last once in 47,000.
class Rotary {
 public:
  /// No rotation.
  Rotary() = default;

  /// Reads the rotation for heads of `head_size` features from config.json, in the spelling of published
  /// folders (rope_theta, rope_scaling) or of transformers 5 (rope_parameters). Throws Error for an
  /// unsupported type, for impossible values, and for settings that contradict each other.
  Rotary(const Settings& settings, int head_size, const RotaryKeys& keys = {});

  /// The number of features of a head that rotate.
  int size() const { return 2 * static_cast<int>(speeds_.size()); }

  double theta() const { return theta_; }

  /// The context after YaRN has stretched the original one; 0 for other rotations.
  int context() const { return context_; }

  /// Divides the speed of each pair by its factor, as some GGUF files require.
  void divide_speeds(std::span<const float> factors);

  /// Writes the cosines of the angles at `position`, then the sines: [size()]. YaRN multiplies both by its
  /// attention factor, usually above 1, which lengthens the rotated queries and keys.
  void rotation(int position, std::span<float> cosines_and_sines) const;

  const std::vector<double>& speeds_for_tests() const { return speeds_; }

 private:
  void scale(const Settings& settings, const Settings& rope);

  double theta_ = 0.0;
  int context_ = 0;
  double length_ = 1.0;         // length of a rotated vector that had length 1
  std::vector<double> speeds_;  // in double precision: an angle is a speed times a position of many thousands
};

}  // namespace staircase
