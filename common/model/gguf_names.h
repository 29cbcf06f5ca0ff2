// Translates the tensors of a GGUF file into the terms of Hugging Face's files: their names, and the order of
// their rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/model/gguf.h"

namespace staircase {

/// How the rows of a stored matrix, or the elements of a vector, are ordered, compared with Hugging Face's
/// order.
struct RowOrder {
  enum class Kind {
    kSame,
    /// In each head, the two rows that rotate together are neighbours; Hugging Face stores the first of each
    /// pair, then the second.
    kPairs,
    /// First the queries of all heads, then their keys, then their values; Hugging Face stores the three of
    /// each head together.
    kParts,
    /// [out, in], where Hugging Face has [in, out].
    kTransposed,
  };
  Kind kind = Kind::kSame;
  std::int64_t heads = 1;

  /// The index of the stored row that becomes row `row` of `rows`. For a transposed matrix, `row` itself.
  std::int64_t stored_row(std::int64_t row, std::int64_t rows) const;
};

/// A family's name in GGUF ("gptneox") and in config.json ("gpt_neox"), and the names of its tensors.
struct GgufFamily;

/// The family that the file names. Throws Error for another one.
const GgufFamily& gguf_family(const GgufFile& file);

std::string model_type(const GgufFamily& family);

/// An integer of the family's metadata from 1 to 2^31 - 1, or `fallback`: "attention.head_count" is
/// "llama.attention.head_count" in the file. Throws Error if it is another value, or if it is missing and
/// `fallback` is 0.
std::int64_t gguf_size(const GgufFile& file, std::string_view key, std::int64_t fallback = 0);

/// Hugging Face's name of a tensor; a tensor without one there, such as rope_freqs.weight, keeps its own.
std::string hugging_face_name(const GgufFamily& family, std::string_view name);

/// The order of a tensor's rows. Throws Error if the heads do not divide them.
RowOrder row_order(const GgufFile& file, const GgufFamily& family, std::string_view name);

}  // namespace staircase
