#include "common/model/gguf_names.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "common/base/error.h"
#include "common/base/json_file.h"

namespace staircase {
namespace {

using Names = std::span<const std::pair<std::string_view, std::string_view>>;

constexpr std::pair<std::string_view, std::string_view> kLlamaBlock[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    // These hold all experts together; Hugging Face stores each expert's matrices separately.
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
};
constexpr std::pair<std::string_view, std::string_view> kLlamaOthers[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

constexpr std::pair<std::string_view, std::string_view> kGemmaBlock[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
};

constexpr std::pair<std::string_view, std::string_view> kNeoxBlock[] = {
    {"attn_norm", "input_layernorm"},   {"attn_qkv", "attention.query_key_value"},
    {"attn_output", "attention.dense"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.dense_h_to_4h"},    {"ffn_down", "mlp.dense_4h_to_h"},
};
constexpr std::pair<std::string_view, std::string_view> kNeoxOthers[] = {
    {"token_embd", "gpt_neox.embed_in"},
    {"output_norm", "gpt_neox.final_layer_norm"},
    {"output", "embed_out"},
};

constexpr std::pair<std::string_view, std::string_view> kGpt2Block[] = {
    {"attn_norm", "ln_1"}, {"attn_qkv", "attn.c_attn"}, {"attn_output", "attn.c_proj"},
    {"ffn_norm", "ln_2"},  {"ffn_up", "mlp.c_fc"},      {"ffn_down", "mlp.c_proj"},
};
constexpr std::pair<std::string_view, std::string_view> kGpt2Others[] = {
    {"token_embd", "transformer.wte"},
    {"position_embd", "transformer.wpe"},
    {"output_norm", "transformer.ln_f"},
    {"output", "lm_head"},
};

}  // namespace

struct GgufFamily {
  std::string_view architecture, model_type;
  std::string_view blocks;  // precedes a block's number
  Names block, others;      // without ".weight" and ".bias"
  bool has_pairs = false;   // queries and keys in the order RowOrder::kPairs
  bool has_parts = false;   // one matrix for queries, keys and values, in the order RowOrder::kParts
  bool is_transposed = false;
};

namespace {

constexpr GgufFamily kFamilies[] = {
    {"llama", "llama", "model.layers.", kLlamaBlock, kLlamaOthers, true},
    {"qwen2", "qwen2", "model.layers.", kLlamaBlock, kLlamaOthers},
    {"qwen3", "qwen3", "model.layers.", kLlamaBlock, kLlamaOthers},
    {"qwen3moe", "qwen3_moe", "model.layers.", kLlamaBlock, kLlamaOthers},
    {"olmoe", "olmoe", "model.layers.", kLlamaBlock, kLlamaOthers},
    {"gemma3", "gemma3_text", "model.layers.", kGemmaBlock, kLlamaOthers},
    {"olmo", "olmo", "model.layers.", kLlamaBlock, kLlamaOthers, true},
    {"gptneox", "gpt_neox", "gpt_neox.layers.", kNeoxBlock, kNeoxOthers, false, true},
    {"gpt2", "gpt2", "transformer.h.", kGpt2Block, kGpt2Others, false, false, true},
};

/// "blk.3.attn_q.bias": the block "3", the part "attn_q", the kind ".bias". The block is empty outside
/// blocks.
struct NameParts {
  std::string_view block, part, kind;
};

NameParts parts_of(std::string_view name) {
  NameParts parts;
  constexpr std::string_view kBlocks = "blk.";
  if (name.starts_with(kBlocks)) {
    const auto end = name.find('.', kBlocks.size());
    const std::string_view number = name.substr(kBlocks.size(), end - kBlocks.size());
    if (end != name.npos && !number.empty() &&
        std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; })) {
      parts.block = number;
      name.remove_prefix(end + 1);
    }
  }
  const auto dot = name.rfind('.');
  parts.part = name.substr(0, dot);
  if (dot != name.npos) parts.kind = name.substr(dot);
  return parts;
}

}  // namespace

std::int64_t RowOrder::stored_row(std::int64_t row, std::int64_t rows) const {
  const std::int64_t in_head = rows / heads;  // for all three parts, if each head stores them together
  const std::int64_t head = row / in_head, place = row % in_head;
  if (kind == Kind::kPairs) {
    const std::int64_t pairs = in_head / 2;
    return head * in_head + place % pairs * 2 + place / pairs;
  }
  if (kind == Kind::kParts) {
    const std::int64_t size = in_head / 3;
    return place / size * heads * size + head * size + place % size;
  }
  return row;
}

const GgufFamily& gguf_family(const GgufFile& file) {
  const std::optional<std::string> architecture = file.text("general.architecture");
  if (!architecture) throw Error("{} has no general.architecture: it holds no model", file.file().string());
  std::string known;
  for (const GgufFamily& family : kFamilies) {
    if (family.architecture == *architecture) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.architecture);
  }
  throw Error("{}: general.architecture is {}, and these can be run: {}", file.file().string(),
              quote(*architecture), known);
}

std::string model_type(const GgufFamily& family) {
  return std::string(family.model_type);
}

std::int64_t gguf_size(const GgufFile& file, std::string_view key, std::int64_t fallback) {
  const std::string name = fmt::format("{}.{}", gguf_family(file).architecture, key);
  const std::optional<std::uint64_t> size = file.integer(name);
  if (!size && fallback == 0) throw Error("{} has no {}", file.file().string(), name);
  if (size && (*size < 1 || *size > std::numeric_limits<std::int32_t>::max())) {
    throw Error("{}: {} is {}, not an integer from 1 to 2^31 - 1", file.file().string(), name, *size);
  }
  return size ? static_cast<std::int64_t>(*size) : fallback;
}

std::string hugging_face_name(const GgufFamily& family, std::string_view name) {
  const NameParts parts = parts_of(name);
  const Names names = parts.block.empty() ? family.others : family.block;
  const auto found = std::ranges::find_if(names, [&](const auto& pair) { return pair.first == parts.part; });
  if (found == names.end() || (parts.kind != ".weight" && parts.kind != ".bias")) return std::string(name);
  if (parts.block.empty()) return fmt::format("{}{}", found->second, parts.kind);
  return fmt::format("{}{}.{}{}", family.blocks, parts.block, found->second, parts.kind);
}

RowOrder row_order(const GgufFile& file, const GgufFamily& family, std::string_view name) {
  using Kind = RowOrder::Kind;
  const NameParts parts = parts_of(name);
  const GgufFile::Tensor& tensor = file.tensors().find(name)->second;
  const bool is_query = parts.part == "attn_q", is_key = parts.part == "attn_k";
  if (parts.block.empty() || (parts.kind != ".weight" && parts.kind != ".bias")) return {};
  if (family.is_transposed) {
    const bool is_matrix = tensor.shape.size() == 2;
    return {is_matrix ? Kind::kTransposed : Kind::kSame};
  }
  RowOrder order;
  if (family.has_pairs && (is_query || is_key)) order.kind = Kind::kPairs;
  if (family.has_parts && parts.part == "attn_qkv") order.kind = Kind::kParts;
  if (order.kind == Kind::kSame) return order;
  order.heads = gguf_size(file, "attention.head_count");
  if (is_key) order.heads = gguf_size(file, "attention.head_count_kv", order.heads);
  const std::int64_t rows = tensor.shape[0], in_head = order.kind == Kind::kPairs ? 2 : 3;
  if (tensor.shape.size() > 2 || rows % (in_head * order.heads) != 0) {
    throw Error("{}: the tensor {} of shape {} cannot be the {} of {} heads", tensor.file.string(),
                quote(name), to_string(tensor.shape),
                is_key     ? "keys"
                : is_query ? "queries"
                           : "queries, keys and values",
                order.heads);
  }
  return order;
}

}  // namespace staircase
