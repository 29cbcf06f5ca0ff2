#include "common/text/gguf_tokenizer.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/base/message.h"
#include "common/model/gguf_config.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/vocabulary_reader.h"

namespace staircase {
namespace {

using Alphabet = TokenizerDescription::Alphabet;

/// The types of tokens, as the file numbers them.
enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

/// What a name in tokenizer.ggml.pre stands for.
struct Pre {
  std::string_view name;
  std::vector<Cut> cuts;
  bool nfc = false;
  bool ignore_merges = false;
  bool adds_begin = false;  // unless the file says otherwise
};

const std::vector<Pre>& known_pres() {
  static const Cut kDigit{R"(\p{N})"};
  static const Cut kLlama3{
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  static const Cut kQwen{
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  static const std::vector<Pre> kKnown{
      {"gpt-2", {gpt2_cut()}},
      {"smollm", {kDigit, gpt2_cut()}},
      {"llama-bpe", {kLlama3}, false, true, true},
      {"llama3", {kLlama3}, false, true, true},
      {"llama-v3", {kLlama3}, false, true, true},
      {"qwen2", {kQwen}, true},
      {"deepseek-r1-qwen", {kQwen}, true},
      // The tokenizer of GPT-NeoX and Pythia, by the names of two other models that use it.
      {"olmo", {gpt2_cut()}, true},
      {"mpt", {gpt2_cut()}, true},
  };
  return kKnown;
}

class Reader {
 public:
  explicit Reader(const GgufFile& file) : file_(file), name_(file.file().string()) {}

  TokenizerDescription read() {
    const std::string model = need(file_.text("tokenizer.ggml.model"), "tokenizer.ggml.model");
    read_tokens();
    if (model == "gpt2") {
      read_byte_level();
    } else if (model == "llama") {
      read_sentencepiece();
    } else {
      throw Error("{}: tokenizer.ggml.model is {}, and \"gpt2\" and \"llama\" are supported", name_,
                  quote(model));
    }
    description_.ends = gguf_end_tokens(file_);
    for (const int end : description_.ends) check_id(static_cast<std::uint64_t>(end), "eos");
    return std::move(description_);
  }

 private:
  template <typename Value>
  Value need(std::optional<Value> value, std::string_view key) const {
    if (!value) throw Error("{} has no {}: it holds no tokenizer", name_, key);
    return *std::move(value);
  }

  void read_tokens() {
    tokens_ = need(file_.texts("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens");
    types_ = file_.integers("tokenizer.ggml.token_type")
                 .value_or(std::vector<std::int64_t>(tokens_.size(), kNormal));
    if (tokens_.empty() || tokens_.size() > kMostTokens) {
      throw Error("{}: tokenizer.ggml.tokens has {} tokens, not 1 to {}", name_, tokens_.size(), kMostTokens);
    }
    if (types_.size() != tokens_.size()) {
      throw Error("{}: tokenizer.ggml.token_type has {} types for {} tokens", name_, types_.size(),
                  tokens_.size());
    }
  }

  /// Sorts the tokens into pieces that are merged, and added tokens that are found as they are.
  void sort_tokens(bool normalized) {
    description_.pieces.resize(tokens_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      const std::string& token = tokens_[i];
      const int id = static_cast<int>(i);
      // Older converters filled a vocabulary up with tokens that a text of a person could name.
      const bool is_filler = token == fmt::format("[PAD{}]", id);
      const std::int64_t type = is_filler || token.empty() ? std::int64_t{kUnused} : types_[i];
      if (type == kNormal || type == kByte) {
        description_.pieces[i] = token;
        written_.emplace(token, id);
      } else if (type == kControl || type == kUnknown) {
        description_.added.push_back({.id = id, .content = token, .special = true});
      } else if (type == kUserDefined) {
        description_.added.push_back({.id = id, .content = token, .normalized = normalized});
      } else if (type != kUnused) {
        throw Error("{}: the token {} has the type {}, not 1 to 6", name_, quote(token), type);
      }
    }
  }

  void read_byte_level() {
    const Pre& pre = find_pre();
    description_.alphabet = Alphabet::kBytes;
    description_.cuts = pre.cuts;
    description_.ignore_merges = pre.ignore_merges;
    if (pre.nfc) description_.normalizations.push_back({Normalization::Kind::kNfc});
    sort_tokens(pre.nfc);
    read_merges();
    read_begin(pre.adds_begin);
  }

  const Pre& find_pre() const {
    const std::optional<std::string> name = file_.text("tokenizer.ggml.pre");
    const std::string wanted = name ? *name : assumed_pre();
    std::string known;
    for (const Pre& pre : known_pres()) {
      if (pre.name == wanted) return pre;
      known += (known.empty() ? "" : ", ") + std::string(pre.name);
    }
    throw Error("{}: tokenizer.ggml.pre is {}, and these are supported: {}", name_, quote(wanted), known);
  }

  /// Old files do not say how a text is cut.
  std::string assumed_pre() const {
    const std::string architecture = file_.text("general.architecture").value_or("");
    const std::string pre = architecture == "gpt2"                                ? "gpt-2"
                            : architecture == "qwen2" || architecture == "qwen3"  ? "qwen2"
                            : architecture == "gptneox" || architecture == "olmo" ? "olmo"
                                                                                  : "";
    if (pre.empty()) {
      throw Error(
          "{} has no tokenizer.ggml.pre, and how it cuts a text cannot be known; a newer file says so",
          name_);
    }
    warn("{} has no tokenizer.ggml.pre: {} is assumed, and if that is wrong, so are the tokens", name_,
         quote(pre));
    return pre;
  }

  void read_merges() {
    const std::vector<std::string> merges =
        need(file_.texts("tokenizer.ggml.merges"), "tokenizer.ggml.merges");
    MergeReader reader(written_, description_.merges);
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const auto place = [&] { return fmt::format("{}: tokenizer.ggml.merges[{}]", name_, i); };
      const std::size_t space = merges[i].find(' ', 1);  // a token may begin with one
      if (space == std::string::npos) {
        throw Error("{} is {}, without a space between two tokens", place(), quote(merges[i]));
      }
      reader.add(merges[i].substr(0, space), merges[i].substr(space + 1), place);
    }
  }

  void read_sentencepiece() {
    description_.alphabet = Alphabet::kCharacters;
    if (file_.boolean("tokenizer.ggml.add_space_prefix").value_or(true)) {
      description_.normalizations.push_back({Normalization::Kind::kPrepend, "", "\u2581"});
    }
    description_.normalizations.push_back({Normalization::Kind::kReplace, " ", "\u2581"});
    sort_tokens(false);
    if (const auto unknown = file_.integer("tokenizer.ggml.unknown_token_id")) {
      description_.unknown = check_id(*unknown, "unknown");
      description_.fuse_unknown = true;
    }
    merges_from_scores();
    read_begin(true);
  }

  /// Any two pieces that make a piece merge, first those that make the one with the best score.
  void merges_from_scores() {
    const std::vector<float> scores = need(file_.numbers("tokenizer.ggml.scores"), "tokenizer.ggml.scores");
    if (scores.size() != tokens_.size()) {
      throw Error("{}: tokenizer.ggml.scores has {} scores for {} tokens", name_, scores.size(),
                  tokens_.size());
    }
    std::vector<int> by_score(tokens_.size());
    std::iota(by_score.begin(), by_score.end(), 0);
    std::ranges::stable_sort(by_score, [&](int a, int b) { return scores[a] > scores[b]; });
    int rank = 0;
    for (const int id : by_score) {
      const std::string& piece = tokens_[id];
      if (types_[id] != kNormal) continue;
      for (std::size_t cut = 1; cut < piece.size(); ++cut) {
        const auto left = written_.find(piece.substr(0, cut)), right = written_.find(piece.substr(cut));
        if (left == written_.end() || right == written_.end()) continue;
        if (types_[left->second] != kNormal || types_[right->second] != kNormal) continue;
        description_.merges.push_back({left->second, right->second, id, rank});
      }
      ++rank;
    }
  }

  void read_begin(bool adds_begin) {
    if (!file_.boolean("tokenizer.ggml.add_bos_token").value_or(adds_begin)) return;
    if (const auto begin = file_.integer("tokenizer.ggml.bos_token_id"))
      description_.begin = check_id(*begin, "bos");
  }

  int check_id(std::uint64_t id, std::string_view which) const {
    if (id >= tokens_.size()) {
      throw Error("{}: tokenizer.ggml.{}_token_id is {}, and there are {} tokens", name_, which, id,
                  tokens_.size());
    }
    return static_cast<int>(id);
  }

  const GgufFile& file_;
  std::string name_;
  std::vector<std::string> tokens_;
  std::vector<std::int64_t> types_;
  WrittenTokens written_;  // those that are merged
  TokenizerDescription description_;
};

}  // namespace

TokenizerDescription describe_gguf_tokenizer(const GgufFile& file) {
  return Reader(file).read();
}

std::optional<std::string> gguf_chat_template(const GgufFile& file) {
  if (auto text = file.text("tokenizer.chat_template")) return text;
  return file.text("tokenizer.chat_template.default");
}

}  // namespace staircase
