// Byte-level byte-pair encoding. Encoding takes three steps:
//
//   text    is cut into pieces, which pre_tokenizer.h does: "Once", " upon", ...
//   bytes   A piece starts as one token a byte. The vocabulary has all 256, so any input has an encoding.
//   merges  Of all neighbours that a merge joins, the pair learnt first is joined, of equals the leftmost;
//           and so on until none are left:  O n c e  ->  O n ce  ->  On ce  ->  Once
//
// Decoding is a table: the bytes of each token, one after the other.
#include "common/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <unordered_map>
#include <utility>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/json_file.h"
#include "common/text/pre_tokenizer.h"
#include "common/text/utf8.h"

namespace staircase {

namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

/// Where merging starts, and how it goes on.
struct MergeTable {
  struct Merge {
    int rank;   ///< its place in merges.txt: the lower, the earlier it was learnt
    int token;  ///< what the pair becomes
  };

  std::array<int, 256> token_of_byte;
  std::unordered_map<std::uint64_t, Merge> merges;  // by key(left token, right token)

  static std::uint64_t key(int left, int right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }

  const Merge* find(int left, int right) const {
    const auto found = merges.find(key(left, right));
    return found == merges.end() ? nullptr : &found->second;
  }
};

/// Merges the pieces of one text; it lives as long as the text so that its memory is used again.
class Merger {
 public:
  explicit Merger(const MergeTable& table) : table_(table) {}

  /// Appends the tokens of `piece`. Trying all neighbours after every merge would be quadratic; a queue of
  /// the pairs that can be joined makes it n log n.
  void encode(std::string_view piece, std::vector<int>& tokens) {
    const int length = static_cast<int>(piece.size());
    symbols_.clear();
    for (int i = 0; i < length; ++i) {
      const int token = table_.token_of_byte[static_cast<unsigned char>(piece[i])];
      symbols_.push_back({token, i - 1, i + 1 < length ? i + 1 : kNone});
    }
    for (int i = 0; i < length; ++i) enqueue(i);

    while (!queue_.empty()) {
      const auto [rank, left] = queue_.top();
      queue_.pop();
      // A neighbour may have been merged away since; then this pair is another one, or none.
      const MergeTable::Merge* merge = merge_at(left);
      if (!merge || merge->rank != rank) continue;
      join(left, merge->token);
      enqueue(left);
      enqueue(symbols_[left].previous);
    }
    for (int i = 0; i != kNone && i < length; i = symbols_[i].next) tokens.push_back(symbols_[i].token);
  }

 private:
  static constexpr int kNone = -1;

  struct Symbol {
    int token;  ///< kNone: it is now part of the symbol before it
    int previous;
    int next;
  };
  using Candidate = std::pair<int, int>;  // rank and the left symbol: the order in which pairs are joined

  const MergeTable::Merge* merge_at(int left) const {
    if (left == kNone || symbols_[left].token == kNone || symbols_[left].next == kNone) return nullptr;
    return table_.find(symbols_[left].token, symbols_[symbols_[left].next].token);
  }

  void enqueue(int left) {
    if (const MergeTable::Merge* merge = merge_at(left)) queue_.push({merge->rank, left});
  }

  void join(int left, int token) {
    Symbol& right = symbols_[symbols_[left].next];
    symbols_[left].token = token;
    symbols_[left].next = right.next;
    if (right.next != kNone) symbols_[right.next].previous = left;
    right.token = kNone;
  }

  const MergeTable& table_;
  std::vector<Symbol> symbols_;  // a linked list; the first symbol is never merged away
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue_;
};

// The files are text, so they write each byte as a printable character: one that prints in Latin-1 stands for
// itself, and the other 68, in order, are U+0100 and up. The space, for one, is U+0120, "Ġ".
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      bytes_[prints ? byte : next++] = byte;
    }
  }

  /// The bytes that `written`, valid UTF-8, stands for; nothing if it has any other character.
  std::optional<std::string> read(std::string_view written) const {
    std::string bytes;
    for (std::size_t i = 0; i < written.size(); ++i) {
      unsigned code_point = static_cast<unsigned char>(written[i]);
      if (code_point >= 0xE0) return {};  // three bytes or more: far above the alphabet
      if (code_point >= 0xC0) code_point = (code_point & 0x1F) << 6 | (written[++i] & 0x3F);
      if (code_point >= bytes_.size() || bytes_[code_point] < 0) return {};
      bytes += static_cast<char>(bytes_[code_point]);
    }
    return bytes;
  }

 private:
  std::array<int, 256 + 68> bytes_;  // by code point
};

using WrittenTokens = std::unordered_map<std::string, int>;  // as the files write them

WrittenTokens read_vocabulary(std::string_view vocab_json, const std::string& path) {
  const nlohmann::json object = parse_json_object(vocab_json, path);
  WrittenTokens tokens;
  tokens.reserve(object.size());
  std::vector<const std::string*> owner(object.size());  // by id: as many ids as tokens, so none is left out
  for (const auto& [written, id] : object.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= object.size()) {
      throw Error("{}: the token {} has the id {}, not an integer from 0 to {}", path, quote(written),
                  shown(id), object.size() - 1);
    }
    const auto [entry, is_new] = tokens.emplace(written, id.get<int>());
    const std::string*& first = owner[id.get<std::size_t>()];
    if (first) {
      throw Error("{}: the tokens {} and {} both have the id {}", path, quote(*first), quote(written),
                  entry->second);
    }
    first = &entry->first;
  }
  return tokens;
}

/// One merge a line, "left right", the first learnt first; the first line may name a version.
std::unordered_map<std::uint64_t, MergeTable::Merge> read_merges(std::string_view text,
                                                                 const WrittenTokens& tokens,
                                                                 const std::string& path) {
  std::unordered_map<std::uint64_t, MergeTable::Merge> merges;
  merges.reserve(tokens.size());
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line.starts_with("#version")) continue;
    if (line.empty() && text.empty()) break;

    const std::size_t space = line.find(' ');
    if (space == 0 || space >= line.size() - 1 || line.find(' ', space + 1) != line.npos) {
      throw Error("{}, line {}: {} is not two tokens with one space between them", path, number, quote(line));
    }
    const std::string left(line.substr(0, space)), right(line.substr(space + 1));
    const auto token = [&](const std::string& written) {
      const auto found = tokens.find(written);
      if (found != tokens.end()) return found->second;
      throw Error("{}, line {}: the token {} is not in the vocabulary", path, number, quote(written));
    };
    const MergeTable::Merge merge{static_cast<int>(merges.size()), token(left + right)};
    if (!merges.emplace(MergeTable::key(token(left), token(right)), merge).second) {
      throw Error("{}, line {}: the merge {} stands there a second time", path, number, quote(line));
    }
  }
  return merges;
}

}  // namespace

struct Tokenizer::Vocabulary {
  std::vector<std::string> bytes;  // by token
  int end_of_text = -1;
  MergeTable table;
  PreTokenizer pre_tokenizer;

  void encode(std::string_view text, std::vector<int>& tokens) const {
    if (text.size() > std::numeric_limits<int>::max()) {
      throw Error("a text of {} bytes is too long to encode at once; 2^31 - 1 are possible", text.size());
    }
    Merger merger(table);
    for (const std::string_view piece : pre_tokenizer.split(text)) merger.encode(piece, tokens);
  }
};

Tokenizer Tokenizer::load(const std::filesystem::path& folder, std::optional<int> end_of_text) {
  const auto vocab_path = folder / "vocab.json", merges_path = folder / "merges.txt";
  const std::string vocab_json = read_text_file(vocab_path);
  const std::string merges_txt = read_text_file(merges_path);
  return parse(vocab_json, merges_txt, vocab_path.string(), merges_path.string(), end_of_text);
}

Tokenizer Tokenizer::parse(std::string_view vocab_json, std::string_view merges_txt,
                           const std::string& vocab_path, const std::string& merges_path,
                           std::optional<int> end_of_text) {
  const WrittenTokens tokens = read_vocabulary(vocab_json, vocab_path);
  auto vocabulary = std::make_unique<Vocabulary>();
  auto& token_of_byte = vocabulary->table.token_of_byte;
  vocabulary->bytes.resize(tokens.size());
  token_of_byte.fill(-1);
  const ByteAlphabet alphabet;
  for (const auto& [written, token] : tokens) {
    const auto bytes = alphabet.read(written);
    if (!bytes) {
      throw Error("{}: the token {} has a character that stands for no byte", vocab_path, quote(written));
    }
    vocabulary->bytes[token] = *bytes;
    if (bytes->size() == 1) token_of_byte[static_cast<unsigned char>(bytes->front())] = token;
    if (*bytes == kEndOfText) vocabulary->end_of_text = token;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (token_of_byte[byte] < 0) {
      throw Error("{} has no token for the byte 0x{:02x}; a byte-level vocabulary has all 256", vocab_path,
                  byte);
    }
  }
  if (vocabulary->end_of_text < 0) {
    if (!end_of_text) throw Error("{} has no token {}", vocab_path, kEndOfText);
    if (*end_of_text < static_cast<int>(tokens.size())) vocabulary->end_of_text = *end_of_text;
  }
  vocabulary->table.merges = read_merges(merges_txt, tokens, merges_path);
  return Tokenizer(std::move(vocabulary));
}

Tokenizer::Tokenizer(std::unique_ptr<Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int> Tokenizer::encode(std::string_view text) const {
  const int end = vocabulary_->end_of_text;
  const std::string written = end < 0 ? "" : vocabulary_->bytes[end];
  if (written.empty()) return encode_ordinary(text);
  std::vector<int> tokens;
  for (;;) {
    const std::size_t special = text.find(written);
    vocabulary_->encode(text.substr(0, special), tokens);
    if (special == text.npos) return tokens;
    tokens.push_back(vocabulary_->end_of_text);
    text.remove_prefix(special + written.size());
  }
}

std::vector<int> Tokenizer::encode_ordinary(std::string_view text) const {
  std::vector<int> tokens;
  vocabulary_->encode(text, tokens);
  return tokens;
}

std::string_view Tokenizer::bytes(int token) const {
  if (token < 0 || token >= vocab_size()) {
    throw Error("{} is no token: the vocabulary has the ids 0 to {}", token, vocab_size() - 1);
  }
  return vocabulary_->bytes[token];
}

std::string Tokenizer::decode(std::span<const int> tokens) const {
  std::string all;
  for (const int token : tokens) all += bytes(token);
  return to_valid_utf8(all);
}

bool Tokenizer::same_tokens(const Tokenizer& other) const {
  if (vocab_size() != other.vocab_size() || eos_token_id() != other.eos_token_id()) return false;
  for (int token = 0; token < vocab_size(); ++token) {
    if (bytes(token) != other.bytes(token)) return false;
  }
  return true;
}

void Tokenizer::extend(int size) {
  for (int token = vocab_size(); token < size; ++token) {
    vocabulary_->bytes.push_back(fmt::format("<{}>", token));
  }
}

int Tokenizer::vocab_size() const {
  return static_cast<int>(vocabulary_->bytes.size());
}

int Tokenizer::eos_token_id() const {
  return vocabulary_->end_of_text;
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
