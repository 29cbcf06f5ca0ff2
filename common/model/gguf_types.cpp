// Dequantizes the blocks of each type with a loop that follows the format's description: ggml-common.h and
// ggml-quants.c in https://github.com/ggml-org/ggml. The block shares a scale d and an offset m; q are small
// packed integers. Operations follow the order of the reference, so results are equal bit for bit.
#include "common/model/gguf_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "kernels/half.h"

namespace staircase {
namespace {

using Bytes = const std::uint8_t*;

/// The float16 at address `at`, which may be odd.
float half(Bytes at) {
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return float32_from_float16(bits);
}

float signed_byte(std::uint8_t byte) {
  return static_cast<float>(static_cast<std::int8_t>(byte));
}

// Types with blocks of 32 numbers. The lower half of byte i holds four bits of number i, the upper half those
// of number i + 16.

struct Float32 {
  static constexpr int kBlock = 1, kBytes = 4;
  static void to_floats(Bytes block, float* values) { std::memcpy(values, block, sizeof(float)); }
};

struct Float16 {
  static constexpr int kBlock = 1, kBytes = 2;
  static void to_floats(Bytes block, float* values) { values[0] = half(block); }
};

struct BFloat16 {
  static constexpr int kBlock = 1, kBytes = 2;
  static void to_floats(Bytes block, float* values) {
    std::uint16_t bits;
    std::memcpy(&bits, block, sizeof bits);
    values[0] = float32_from_bfloat16(bits);
  }
};

/// d (2 bytes), 32 signed bytes q: value = d q.
struct Q8_0 {
  static constexpr int kBlock = 32, kBytes = 2 + 32;
  static void to_floats(Bytes block, float* values) {
    const float d = half(block);
    const Bytes q = block + 2;
    for (int i = 0; i < 32; ++i) values[i] = d * signed_byte(q[i]);
  }
};

/// d (2 bytes), 32 times 4 bits q: value = d (q - 8).
struct Q4_0 {
  static constexpr int kBlock = 32, kBytes = 2 + 16;
  static void to_floats(Bytes block, float* values) {
    const float d = half(block);
    const Bytes q = block + 2;
    for (int i = 0; i < 16; ++i) {
      values[i] = d * static_cast<float>((q[i] & 15) - 8);
      values[i + 16] = d * static_cast<float>((q[i] >> 4) - 8);
    }
  }
};

/// d and m (2 bytes each), 32 times 4 bits q: value = d q + m.
struct Q4_1 {
  static constexpr int kBlock = 32, kBytes = 2 + 2 + 16;
  static void to_floats(Bytes block, float* values) {
    const float d = half(block), m = half(block + 2);
    const Bytes q = block + 4;
    for (int i = 0; i < 16; ++i) {
      values[i] = d * static_cast<float>(q[i] & 15) + m;
      values[i + 16] = d * static_cast<float>(q[i] >> 4) + m;
    }
  }
};

/// The fifth bits of 32 numbers: bit i belongs to number i.
std::uint32_t fifth_bits(Bytes at) {
  std::uint32_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}

/// d (2 bytes), 32 fifth bits, 32 times 4 bits: q has 5 bits, value = d (q - 16).
struct Q5_0 {
  static constexpr int kBlock = 32, kBytes = 2 + 4 + 16;
  static void to_floats(Bytes block, float* values) {
    const float d = half(block);
    const std::uint32_t high = fifth_bits(block + 2);
    const Bytes low = block + 6;
    for (int i = 0; i < 16; ++i) {
      const int first = (low[i] & 15) | (high >> i & 1) << 4;
      const int second = low[i] >> 4 | (high >> (i + 16) & 1) << 4;
      values[i] = d * static_cast<float>(first - 16);
      values[i + 16] = d * static_cast<float>(second - 16);
    }
  }
};

/// d and m (2 bytes each), 32 fifth bits, 32 times 4 bits: q has 5 bits, value = d q + m.
struct Q5_1 {
  static constexpr int kBlock = 32, kBytes = 2 + 2 + 4 + 16;
  static void to_floats(Bytes block, float* values) {
    const float d = half(block), m = half(block + 2);
    const std::uint32_t high = fifth_bits(block + 4);
    const Bytes low = block + 8;
    for (int i = 0; i < 16; ++i) {
      const int first = (low[i] & 15) | (high >> i & 1) << 4;
      const int second = low[i] >> 4 | (high >> (i + 16) & 1) << 4;
      values[i] = d * static_cast<float>(first) + m;
      values[i + 16] = d * static_cast<float>(second) + m;
    }
  }
};

/// d (2 bytes), 32 times 4 bits q, the number of a level: value = d level[q]. The levels are dense around
/// zero, where most weights are.
struct IQ4_NL {
  static constexpr int kBlock = 32, kBytes = 2 + 16;
  static void to_floats(Bytes block, float* values) {
    static constexpr float kLevels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
    const float d = half(block);
    const Bytes q = block + 2;
    for (int i = 0; i < 16; ++i) {
      values[i] = d * kLevels[q[i] & 15];
      values[i + 16] = d * kLevels[q[i] >> 4];
    }
  }
};

// Types with blocks of 256 numbers ("K"): every 16 or 32 numbers share a scale of few bits, and these scales
// share another scale.

/// Eight scales and eight minima of 6 bits in 12 bytes. The first four groups use the lower 6 bits of bytes 0
/// to 3 (scales) and 4 to 7 (minima). The last four groups keep 4 bits in bytes 8 to 11: the scale's in the
/// lower half, the minimum's in the upper. Their other 2 bits are the spare upper bits of bytes 0 to 7.
struct SixBits {
  int scale, minimum;
};

SixBits six_bits(Bytes packed, int group) {
  if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
  const int low = packed[group + 4];
  return {(low & 15) | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4};
}

/// d and m (2 bytes each), eight groups' scales and minima (12 bytes), 256 times 4 bits q: value = d scale q
/// - m minimum. Two groups share 32 bytes: the first uses the lower halves, the second the upper halves.
struct Q4_K {
  static constexpr int kBlock = 256, kBytes = 2 + 2 + 12 + 128;
  static void to_floats(Bytes block, float* values) {
    const float d = half(block), m = half(block + 2);
    for (int group = 0; group < 8; ++group) {
      const auto [scale, minimum] = six_bits(block + 4, group);
      const float step = d * static_cast<float>(scale), offset = m * static_cast<float>(minimum);
      const Bytes q = block + 16 + 32 * (group / 2);
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        values[32 * group + i] = step * static_cast<float>(q[i] >> shift & 15) - offset;
      }
    }
  }
};

/// As Q4_K, with a fifth bit for each number: in 32 more bytes before the lower bits, bit g belongs to group
/// g.
struct Q5_K {
  static constexpr int kBlock = 256, kBytes = 2 + 2 + 12 + 32 + 128;
  static void to_floats(Bytes block, float* values) {
    const float d = half(block), m = half(block + 2);
    const Bytes high = block + 16;
    for (int group = 0; group < 8; ++group) {
      const auto [scale, minimum] = six_bits(block + 4, group);
      const float step = d * static_cast<float>(scale), offset = m * static_cast<float>(minimum);
      const Bytes low = block + 48 + 32 * (group / 2);
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        const int q = (low[i] >> shift & 15) | (high[i] >> group & 1) << 4;
        values[32 * group + i] = step * static_cast<float>(q) - offset;
      }
    }
  }
};

/// Lower 4 bits (128 bytes), upper 2 bits (64 bytes), scales of 16 numbers (16 signed bytes), d (2 bytes):
/// value = d scale (q - 32). Each half of the block has 128 numbers in four groups of 32. Two groups share 32
/// bytes of lower bits; the first and third use the lower halves. All four share 32 bytes of upper bits.
struct Q6_K {
  static constexpr int kBlock = 256, kBytes = 128 + 64 + 16 + 2;
  static void to_floats(Bytes block, float* values) {
    const Bytes scales = block + 192;
    const float d = half(block + 208);
    for (int group = 0; group < 8; ++group) {
      const int half_block = group / 4, in_half = group % 4;
      const Bytes low = block + 64 * half_block + 32 * (in_half % 2);
      const Bytes high = block + 128 + 32 * half_block;
      const float step[2] = {d * signed_byte(scales[2 * group]), d * signed_byte(scales[2 * group + 1])};
      const int shift = in_half / 2 * 4;
      for (int i = 0; i < 32; ++i) {
        const int q = (low[i] >> shift & 15) | (high[i] >> 2 * in_half & 3) << 4;
        values[32 * group + i] = step[i / 16] * static_cast<float>(q - 32);
      }
    }
  }
};

template <typename Type>
constexpr GgufType readable(std::uint32_t id, std::string_view name) {
  return {id, name, Type::kBlock, Type::kBytes,
          [](const std::byte* stored, std::int64_t blocks, float* values) {
            const auto* const bytes = reinterpret_cast<Bytes>(stored);
            for (std::int64_t b = 0; b < blocks; ++b) {
              Type::to_floats(bytes + b * Type::kBytes, values + b * Type::kBlock);
            }
          }};
}

constexpr GgufType kTypes[] = {
    readable<Float32>(0, "F32"),
    readable<Float16>(1, "F16"),
    readable<BFloat16>(30, "BF16"),
    readable<Q8_0>(8, "Q8_0"),
    readable<Q4_0>(2, "Q4_0"),
    readable<Q4_1>(3, "Q4_1"),
    readable<Q5_0>(6, "Q5_0"),
    readable<Q5_1>(7, "Q5_1"),
    readable<IQ4_NL>(20, "IQ4_NL"),
    readable<Q4_K>(12, "Q4_K"),
    readable<Q5_K>(13, "Q5_K"),
    readable<Q6_K>(14, "Q6_K"),
    // Only the name is known, so that an error can name the type in a file.
    {9, "Q8_1"},
    {10, "Q2_K"},
    {11, "Q3_K"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {23, "IQ4_XS"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {39, "MXFP4"},
    {40, "NVFP4"},
    {41, "Q1_0"},
    {42, "Q2_0"},
};

template <typename Matches>
const GgufType* find_type(const Matches& matches) {
  const auto* const found = std::find_if(std::begin(kTypes), std::end(kTypes), matches);
  return found == std::end(kTypes) ? nullptr : found;
}

}  // namespace

const GgufType* find_gguf_type(std::uint32_t id) {
  return find_type([&](const GgufType& type) { return type.id == id; });
}

const GgufType* find_gguf_type(std::string_view name) {
  return find_type([&](const GgufType& type) { return type.name == name; });
}

std::string readable_gguf_types() {
  std::string names;
  for (const GgufType& type : kTypes) {
    if (type.to_floats == nullptr) continue;
    names += (names.empty() ? "" : ", ") + std::string(type.name);
  }
  return names;
}

}  // namespace staircase
