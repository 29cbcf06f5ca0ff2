// Encoding takes these steps:
//
//   added tokens  are found first; the text between them goes on in parts (added_tokens.h).
//   normalization A part may be changed: "é" becomes one character, or spaces become marks (normalizer.h).
//   splits        A part is split into pieces: "Once", " upon", ... (pre_tokenizer.h)
//   spelling      A piece starts as one token per byte, or one per character (spelling.h).
//   merges        Neighbours merge in the order in which the merges were learnt (merger.h).
//
// Decoding is a table: the bytes of each token, one after another.
#include "common/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/base/error.h"
#include "common/base/json_file.h"
#include "common/text/added_tokens.h"
#include "common/text/merger.h"
#include "common/text/normalizer.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/spelling.h"
#include "common/text/tokenizer_files.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

/// The added tokens that are found before the text is normalized, or after it.
std::vector<AddedToken> select(const std::vector<AddedToken>& all, bool special, bool normalized) {
  std::vector<AddedToken> selected;
  for (const AddedToken& token : all) {
    if (token.normalized == normalized && (special || !token.special)) selected.push_back(token);
  }
  return selected;
}

std::vector<AddedToken> normalized(std::vector<AddedToken> tokens, const Normalizer& normalizer) {
  for (AddedToken& token : tokens) token.content = normalizer.normalize(token.content);
  std::erase_if(tokens, [](const AddedToken& token) { return token.content.empty(); });
  return tokens;
}

/// Adapts `all` to a text that a program and a person wrote together. Its markers are found before the text
/// is normalized, while the origin of each byte is still known.
std::vector<AddedToken> for_origins(std::vector<AddedToken> all) {
  for (AddedToken& token : all) token.normalized = token.normalized && !is_marker(token);
  return all;
}

/// The tokens to look for in a text: all added tokens, or all that are not special.
struct Search {
  AddedTokens in_text, in_normalized;

  Search(const std::vector<AddedToken>& all, bool special, const Normalizer& normalizer)
      : in_text(select(all, special, false)),
        in_normalized(normalized(select(all, special, true), normalizer)) {}
};

/// Splits `text` at `tokens`. Calls `on_part(part, whether it begins the text)` for each part between tokens,
/// and `on_token(id)` for each token.
template <typename OnPart, typename OnToken>
void take_apart(std::string_view text, const std::vector<bool>* own, const AddedTokens& tokens,
                const OnPart& on_part, const OnToken& on_token) {
  std::size_t done = 0;
  while (!tokens.empty()) {
    const auto found = tokens.next(text, done, own);
    if (!found) break;
    if (done < found->begin) on_part(text.substr(done, found->begin - done), done == 0);
    on_token(found->id);
    done = found->end;
  }
  if (done < text.size()) on_part(text.substr(done), done == 0);
}

}  // namespace

struct Tokenizer::Vocabulary {
  std::vector<std::string> bytes;              // by token
  std::unordered_map<std::string, int> whole;  // pieces that become one token regardless of the merges
  std::vector<int> special;                    // tokens
  std::optional<int> begin;
  SpaceBefore space_before;
  bool marks_spaces, drops_first_space;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Search text_search, special_search, own_search;
  std::unique_ptr<Spelling> spelling;
  MergeTable table;

  explicit Vocabulary(const TokenizerDescription& description)
      : begin(description.begin),
        space_before(description.space_before),
        marks_spaces(description.marks_spaces),
        drops_first_space(description.drops_first_space),
        normalizer(description.normalizations),
        pre_tokenizer(description.cuts),
        text_search(description.added, false, normalizer),
        special_search(description.added, true, normalizer),
        own_search(for_origins(description.added), true, normalizer),
        spelling(spelling_of(description)),
        table(description.merges) {}

  std::vector<int> encode(std::string_view text, const Search& search,
                          const std::vector<bool>* own = nullptr) const;
};

/// Encodes one text and reuses its memory from piece to piece.
class Tokenizer::Encoding {
 public:
  Encoding(const Vocabulary& vocabulary, const Search& search)
      : vocabulary_(vocabulary), search_(search), merger_(vocabulary.table) {}

  std::vector<int> encode(std::string_view text, const std::vector<bool>* own) {
    take_apart(
        text, own, search_.in_text, [&](std::string_view part, bool first) { normalize(part, first); },
        [&](int token) { tokens_.push_back(token); });
    return std::move(tokens_);
  }

 private:
  void normalize(std::string_view part, bool first) {
    std::string normal;
    if (!vocabulary_.normalizer.empty()) part = normal = vocabulary_.normalizer.normalize(part);
    take_apart(
        part, nullptr, search_.in_normalized,
        [&](std::string_view rest, bool still_first) { cut(rest, first && still_first); },
        [&](int token) { tokens_.push_back(token); });
  }

  void cut(std::string_view part, bool first) {
    std::string marked;
    const std::string_view space = vocabulary_.marks_spaces ? kSpaceMark : " ";
    if (vocabulary_.marks_spaces) part = marked = replaced(part, " ", kSpaceMark);
    const SpaceBefore before = vocabulary_.space_before;
    const bool wants_space = before == SpaceBefore::kEach || (before == SpaceBefore::kFirst && first);
    if (wants_space && !part.starts_with(space)) part = marked = std::string(space).append(part);
    for (const std::string_view piece : vocabulary_.pre_tokenizer.split(part)) merge(piece);
  }

  void merge(std::string_view piece) {
    const auto& whole = vocabulary_.whole;
    if (!whole.empty()) {
      const auto found = whole.find(std::string(piece));
      if (found != whole.end()) return tokens_.push_back(found->second);
    }
    symbols_.clear();
    vocabulary_.spelling->spell(piece, symbols_);
    merger_.merge(symbols_, tokens_);
  }

  const Vocabulary& vocabulary_;
  const Search& search_;
  Merger merger_;
  std::vector<int> symbols_, tokens_;
};

std::vector<int> Tokenizer::Vocabulary::encode(std::string_view text, const Search& search,
                                               const std::vector<bool>* own) const {
  if (text.size() > std::numeric_limits<int>::max()) {
    throw Error("a text of {} bytes is too long to encode at once; the limit is 2^31 - 1", text.size());
  }
  return Encoding(*this, search).encode(text, own);
}

Tokenizer Tokenizer::load(const std::filesystem::path& folder, std::span<const int> ends) {
  TokenizerDescription description = describe_tokenizer(folder);
  for (AddedToken& token : description.added) token.special |= std::ranges::count(ends, token.id) > 0;
  return Tokenizer(description, folder.string());
}

Tokenizer::Tokenizer(const TokenizerDescription& description, const std::string& file) try
    : vocabulary_(std::make_unique<Vocabulary>(description)) {
  auto& bytes = vocabulary_->bytes;
  // Inside a piece, an added token is plain text, even if the vocabulary lists it among its words.
  std::unordered_set<std::size_t> added;
  for (const AddedToken& token : description.added) added.insert(static_cast<std::size_t>(token.id));
  bytes.resize(description.pieces.size());
  const bool in_bytes = description.alphabet == TokenizerDescription::Alphabet::kBytes;
  for (std::size_t token = 0; token < bytes.size(); ++token) {
    const std::string& piece = description.pieces[token];
    const auto spelled = vocabulary_->spelling->bytes(piece);
    bytes[token] = spelled.value_or(piece);
    const bool whole = description.ignore_merges && spelled && !piece.empty() && !added.contains(token);
    if (whole) vocabulary_->whole.emplace(in_bytes ? *spelled : piece, static_cast<int>(token));
  }
  for (const AddedToken& token : description.added) {
    const auto id = static_cast<std::size_t>(token.id);
    if (id >= bytes.size()) bytes.resize(id + 1);
    if (is_marker(token)) vocabulary_->special.push_back(token.id);
    const bool changes = token.normalized && in_bytes;
    bytes[id] = changes ? vocabulary_->normalizer.normalize(token.content) : token.content;
  }
} catch (const Error& error) {
  throw Error("{}: {}", file, error.what());
}

Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int> Tokenizer::encode(std::string_view text) const {
  return vocabulary_->encode(text, vocabulary_->text_search);
}

std::vector<int> Tokenizer::encode_with_special_tokens(std::string_view text) const {
  return vocabulary_->encode(text, vocabulary_->special_search);
}

std::vector<int> Tokenizer::encode_with_special_tokens(std::string_view text,
                                                       const std::vector<bool>& own) const {
  if (own.size() != text.size())
    throw Error("a text of {} bytes comes with {} flags; each byte needs one", text.size(), own.size());
  return vocabulary_->encode(text, vocabulary_->own_search, &own);
}

std::vector<int> Tokenizer::encode_prompt(std::string_view text) const {
  return with_begin(encode(text));
}

std::vector<int> Tokenizer::with_begin(std::vector<int> tokens) const {
  const std::optional<int> begin = vocabulary_->begin;
  if (begin && (tokens.empty() || tokens.front() != *begin)) tokens.insert(tokens.begin(), *begin);
  return tokens;
}

std::vector<int> Tokenizer::special_tokens() const {
  return vocabulary_->special;
}

std::string_view Tokenizer::bytes(int token) const {
  if (token < 0 || token >= vocab_size()) {
    throw Error("{} is not a token: the vocabulary has the ids 0 to {}", token, vocab_size() - 1);
  }
  return vocabulary_->bytes[static_cast<std::size_t>(token)];
}

std::string Tokenizer::decode(std::span<const int> tokens) const {
  std::string all;
  for (const int token : tokens) all += bytes(token);
  return to_valid_utf8(all);
}

std::string Tokenizer::decode_whole(std::span<const int> tokens) const {
  std::string text = decode(tokens);
  if (vocabulary_->drops_first_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

bool Tokenizer::same_tokens(const Tokenizer& other) const {
  const auto &ours = vocabulary_->bytes, &theirs = other.vocabulary_->bytes;
  const auto& [fewer, more] = ours.size() < theirs.size() ? std::tie(ours, theirs) : std::tie(theirs, ours);
  const auto rest = more.begin() + std::ssize(fewer);
  return std::equal(fewer.begin(), fewer.end(), more.begin()) &&
         std::all_of(rest, more.end(), [](const std::string& bytes) { return bytes.empty(); });
}

void Tokenizer::extend(int size) {
  if (size > vocab_size()) vocabulary_->bytes.resize(static_cast<std::size_t>(size));
}

int Tokenizer::vocab_size() const {
  return static_cast<int>(vocabulary_->bytes.size());
}

std::string StreamDecoder::push(int token) {
  return push(tokenizer_->bytes(token));
}

std::string StreamDecoder::push(std::string_view bytes) {
  pending_ += bytes;
  return take_complete_utf8(pending_);
}

std::string StreamDecoder::finish() {
  return to_valid_utf8(std::exchange(pending_, {}));
}

}  // namespace staircase
