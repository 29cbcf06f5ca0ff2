// Translates the tensors of a GGUF file to Hugging Face's names and order of rows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/model/gguf.h"

namespace staircase {

/// How the order of the rows of a stored matrix, or the elements of a vector, differs from Hugging Face's.
struct RowOrder {
  enum class Kind {
    kSame,
    /// In each head, the two rows that rotate together are neighbours. Hugging Face stores first one row of
    /// every pair, then the other.
    kPairs,
    /// The queries of all heads come first, then their keys, then their values. Hugging Face stores the three
    /// together for each head.
    kParts,
    /// [out, in]; Hugging Face stores [in, out].
    kTransposed,
  };
  Kind kind = Kind::kSame;
  std::int64_t heads = 1;

  /// The index of the stored row that becomes row `row` of `rows`; `row` itself for a transposed matrix.
  std::int64_t stored_row(std::int64_t row, std::int64_t rows) const;
};

/// A family's name in GGUF ("gptneox") and in config.json ("gpt_neox"), and the names of its tensors.
struct GgufFamily;

/// The family that the file names. Throws Error for an unsupported family.
const GgufFamily& gguf_family(const GgufFile& file);

std::string model_type(const GgufFamily& family);

/// Returns an integer from the family's metadata, or `fallback` if it is missing. The key
/// "attention.head_count" is "llama.attention.head_count" in the file. Throws Error for a value outside 1 to
/// 2^31 - 1, or if the value is missing and `fallback` is 0.
std::int64_t gguf_size(const GgufFile& file, std::string_view key, std::int64_t fallback = 0);

/// Hugging Face's name of a tensor. A tensor that Hugging Face does not have, such as rope_freqs.weight,
/// keeps its name.
std::string hugging_face_name(const GgufFamily& family, std::string_view name);

/// The order of a tensor's rows. Throws Error if the heads do not divide them.
RowOrder row_order(const GgufFile& file, const GgufFamily& family, std::string_view name);

}  // namespace staircase
