// The tokenizer: the ids of Hugging Face's and OpenAI's tokenizers, agreement with BPE as the paper states
// it, no byte lost, no quadratic time, and one sentence for every broken file.
#include "common/text/tokenizer.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "common/text/merger.h"
#include "common/text/utf8.h"
#include "common/text/vocabulary_reader.h"
#include "tests/error_message.h"
#include "tests/temporary_folder.h"

using namespace staircase;
using nlohmann::json;

namespace {

const std::filesystem::path kSource = STAIRCASE_SOURCE_TREE;
const std::filesystem::path kReference = kSource / "tests" / "reference";
constexpr std::string_view kEndOfText = "<|endoftext|>";

Tokenizer made_of(const std::string& vocab, const std::string& merges) {
  return Tokenizer(read_vocab_and_merges(vocab, merges, "some/vocab.json", "some/merges.txt"), "some");
}

const Tokenizer& gpt2() {
  static const Tokenizer tokenizer = Tokenizer::load(kReference / "gpt2-tokenizer");
  return tokenizer;
}

const Tokenizer& tales() {
  static const Tokenizer tokenizer = Tokenizer::load(kSource / "models" / "tales-6m");
  return tokenizer;
}

std::string slurp(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  REQUIRE(in);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string joined(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  std::string bytes;
  for (const int id : ids) bytes += tokenizer.bytes(id);
  return bytes;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<int>& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const int id : ids) {
    const std::string part = decoder.push(id);
    REQUIRE(to_valid_utf8(part) == part);
    text += part;
  }
  return text + decoder.finish();
}

/// Encodes and decodes in every way there is; nothing may be lost or depend on the way.
void check_round_trip(const Tokenizer& tokenizer, const std::string& bytes) {
  for (const auto& ids : {tokenizer.encode_with_special_tokens(bytes), tokenizer.encode(bytes)}) {
    REQUIRE(joined(tokenizer, ids) == bytes);
    const std::string text = tokenizer.decode(ids);
    REQUIRE(text == to_valid_utf8(bytes));
    REQUIRE(streamed(tokenizer, ids) == text);
  }
}

/// How the files write a byte: encoder.py of GPT-2, bytes_to_unicode, as UTF-8.
std::string written(unsigned char byte) {
  const auto prints = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  int code_point = byte;
  if (!prints(byte)) {
    code_point = 256;
    for (int b = 0; b < byte; ++b) code_point += !prints(b);
  }
  if (code_point < 128) return {static_cast<char>(code_point)};
  return {static_cast<char>(0xC0 | code_point >> 6), static_cast<char>(0x80 | (code_point & 0x3F))};
}

std::string written(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += written(static_cast<unsigned char>(byte));
  return text;
}

/// BPE as the paper states it: look at all neighbours, join the one learnt first, look again. Quadratic.
std::vector<std::string> naive_bpe(std::vector<std::string> symbols,
                                   const std::map<std::pair<std::string, std::string>, int>& ranks) {
  for (;;) {
    int best = -1, best_rank = 0;
    for (int i = 0; i + 1 < static_cast<int>(symbols.size()); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && (best < 0 || found->second < best_rank)) {
        best = i;
        best_rank = found->second;
      }
    }
    if (best < 0) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + best + 1);
  }
}

/// The 256 bytes, the end-of-text and the products of some merges of bytes.
struct SmallVocabulary {
  json vocab;
  std::string merges = "#version: 0.2\n";
  std::map<std::pair<std::string, std::string>, int> ranks;

  SmallVocabulary() {
    for (int byte = 0; byte < 256; ++byte) vocab[written(static_cast<unsigned char>(byte))] = byte;
    vocab[std::string(kEndOfText)] = 256;
  }

  void merge(const std::string& left, const std::string& right) {
    const std::string whole = written(left + right);
    if (!vocab.contains(whole)) vocab[whole] = static_cast<int>(vocab.size());
    merges += written(left) + " " + written(right) + "\n";
    ranks.emplace(std::pair(left, right), static_cast<int>(ranks.size()));
  }

  Tokenizer load() const { return made_of(vocab.dump(), merges); }
};

std::string error_of(const std::string& vocab, const std::string& merges) {
  return error_message([&] { made_of(vocab, merges); });
}

std::string repeat(const std::string& part, std::size_t size) {
  std::string text;
  while (text.size() < size) text += part;
  return text;
}

}  // namespace

TEST_CASE("texts of all kinds get the ids of the reference tokenizers") {
  for (const std::string name : {"gpt2", "tales"}) {
    CAPTURE(name);
    const Tokenizer& tokenizer = name == "gpt2" ? gpt2() : tales();
    const json reference = json::parse(slurp(kReference / ("tokenizer_" + name + ".json")));
    CHECK(tokenizer.vocab_size() == reference["vocab_size"].get<int>());
    CHECK(reference["cases"].size() > 200);
    CHECK(reference["ordinary"].size() > 5);
    for (const json& one : reference["cases"]) {
      const std::string text = one["text"];
      const std::vector<int> ids = one["ids"];
      CAPTURE(text);
      CHECK(tokenizer.encode_with_special_tokens(text) == ids);
      CHECK(tokenizer.decode(ids) == text);
      check_round_trip(tokenizer, text);
    }
    for (const json& one : reference["ordinary"]) {
      const std::string text = one["text"];
      CAPTURE(text);
      CHECK(tokenizer.encode(text) == one["ids"].get<std::vector<int>>());
    }
  }
}

TEST_CASE("the end-of-text is one token where special tokens are parsed, and ordinary text in encode") {
  const std::string text(kEndOfText);
  CHECK(gpt2().encode_with_special_tokens(text + text) == std::vector<int>{50256, 50256});
  CHECK(gpt2().encode(text).size() > 1);
  CHECK(gpt2().bytes(50256) == kEndOfText);
  CHECK(gpt2().encode_with_special_tokens("<|endoftext|") == gpt2().encode("<|endoftext|"));
  CHECK(gpt2().encode_with_special_tokens("<<|endoftext|>>") == std::vector<int>{27, 50256, 29});
}

TEST_CASE("each of the 256 bytes is a token, alone and next to another") {
  for (int byte = 0; byte < 256; ++byte) {
    CHECK(gpt2().encode_with_special_tokens(std::string(1, static_cast<char>(byte))).size() == 1);
    for (int next = 0; next < 256; ++next) {
      check_round_trip(gpt2(), {static_cast<char>(byte), static_cast<char>(next)});
    }
  }
}

TEST_CASE("no byte is lost, whatever the bytes are") {
  std::mt19937 random(3);
  const std::vector<std::string> parts = {" ",
                                          "  ",
                                          "\n",
                                          "\t",
                                          "'s",
                                          "'ll",
                                          "'",
                                          "the",
                                          "Zebra",
                                          "42",
                                          "\u00E9",
                                          "\u4E2D\u6587",
                                          "\U0001F600",
                                          "e\u0301",
                                          "\u00A0",
                                          "\u3000",
                                          "\xFF",
                                          "\xC3",
                                          "\xE2\x82",
                                          "\xF0\x9F\x98",
                                          "\x80",
                                          "\xED\xA0\x80",
                                          "<|endoftext|>",
                                          "<|end"};
  for (int round = 0; round < 2000; ++round) {
    std::string mixed, any;
    for (unsigned i = 0; i < random() % 20; ++i) mixed += parts[random() % parts.size()];
    for (unsigned i = 0; i < random() % 40; ++i) any += static_cast<char>(random());
    any.insert(random() % (any.size() + 1), std::string(1, '\0'));
    check_round_trip(gpt2(), mixed);
    check_round_trip(tales(), mixed);
    check_round_trip(gpt2(), any);
    check_round_trip(tales(), any);
  }
}

TEST_CASE("a piece is encoded as BPE is defined, for the real merges") {
  for (const auto& [tokenizer, folder] : {std::pair(&gpt2(), kReference / "gpt2-tokenizer"),
                                          std::pair(&tales(), kSource / "models" / "tales-6m")}) {
    std::map<std::pair<std::string, std::string>, int> ranks;
    std::ifstream in(folder / "merges.txt");
    std::string left, right;
    std::getline(in, left);
    while (in >> left >> right) ranks.emplace(std::pair(left, right), static_cast<int>(ranks.size()));
    const std::map<std::string, int> vocab = json::parse(slurp(folder / "vocab.json"));

    std::mt19937 random(4);
    for (int round = 0; round < 600; ++round) {
      // A run of letters is one piece, and so is one of punctuation. Few letters make many merges.
      const std::string alphabet = round % 3 == 0   ? "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   : round % 3 == 1 ? "aenorst"
                                                    : "!=-*./#";
      std::string piece;
      for (unsigned i = 0; i <= random() % 60; ++i) piece += alphabet[random() % alphabet.size()];
      std::vector<std::string> symbols;
      for (const char c : piece) symbols.emplace_back(1, c);
      std::vector<int> ids;
      for (const std::string& symbol : naive_bpe(symbols, ranks)) ids.push_back(vocab.at(symbol));
      CAPTURE(piece);
      REQUIRE(tokenizer->encode_with_special_tokens(piece) == ids);
    }
  }
}

TEST_CASE("a piece is encoded as BPE is defined, for merges in any order") {
  // Learnt merges are in an order in which a part is always older than the whole. Shuffled, a merge can bring
  // back a pair that ranks before it, and several ways can lead to the same token.
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> known = {"a", "b", "c"};
    std::set<std::pair<std::string, std::string>> pairs;
    for (unsigned i = 0; i < 4 + random() % 20; ++i) {
      const std::string left = known[random() % known.size()], right = known[random() % known.size()];
      if (pairs.emplace(left, right).second) known.push_back(left + right);
    }
    std::vector<std::pair<std::string, std::string>> shuffled(pairs.begin(), pairs.end());
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    SmallVocabulary small;
    for (const auto& [left, right] : shuffled) small.merge(left, right);
    // The parts of a merge are tokens too, whichever came first.
    const Tokenizer tokenizer = small.load();
    for (int text = 0; text < 20; ++text) {
      std::vector<std::string> symbols;
      for (unsigned i = 0; i <= random() % 40; ++i) symbols.emplace_back(1, "abc"[random() % 3]);
      std::string piece;
      for (const std::string& symbol : symbols) piece += symbol;
      std::vector<int> ids;
      for (const std::string& symbol : naive_bpe(symbols, small.ranks))
        ids.push_back(small.vocab[written(symbol)]);
      CAPTURE(piece);
      CAPTURE(small.merges);
      REQUIRE(tokenizer.encode_with_special_tokens(piece) == ids);
    }
  }
}

TEST_CASE("the leftmost of equal pairs is joined first") {
  SmallVocabulary small;
  small.merge("a", "a");
  const Tokenizer tokenizer = small.load();
  const int aa = small.vocab["aa"], a = small.vocab["a"];
  CHECK(tokenizer.encode_with_special_tokens("aaa") == std::vector<int>{aa, a});
  CHECK(tokenizer.encode_with_special_tokens("aaaaa") == std::vector<int>{aa, aa, a});
}

TEST_CASE("a megabyte of anything is encoded in near-linear time and without a deep stack") {
  // Nothing here measures: with quadratic merging or a recursive matcher this test would not come to an end.
  constexpr std::size_t kSize = 1'000'000;
  std::mt19937 random(6);
  std::string letters, bytes;
  while (letters.size() < kSize) letters += static_cast<char>('a' + random() % 26);
  while (bytes.size() < kSize) bytes += static_cast<char>(random());
  const std::string spaces(kSize, ' ');
  for (const std::string& text :
       {letters, bytes, spaces, spaces + "x", std::string(kSize, 'a'), std::string(kSize, '7'),
        std::string(kSize, '\n') + "x", std::string(kSize, '\xFF'), repeat("\u3000", kSize) + "x",
        repeat("\U0001F600", kSize), repeat("\u4E2D", kSize), repeat("\xE2\x82", kSize),
        repeat("a\xFF", kSize), repeat(" '", kSize), repeat("<|endoftext|", kSize),
        repeat("<|endoftext|>", kSize), repeat(" the cat", kSize)}) {
    CHECK(joined(gpt2(), gpt2().encode_with_special_tokens(text)) == text);
  }
}

TEST_CASE("a token outside the vocabulary is an error") {
  for (const int token : {-1, 4096, 2147483647, -2147483647 - 1}) {
    CHECK(says(error_message([&] { tales().bytes(token); }), std::to_string(token), "0 to 4095"));
    CHECK(says(error_message([&] { tales().decode(std::vector<int>{1, token}); }), "0 to 4095"));
    CHECK(says(error_message([&] { StreamDecoder(tales()).push(token); }), "0 to 4095"));
  }
}

TEST_CASE("tokens that only the model has are the empty text, and no text is encoded to them") {
  Tokenizer tokenizer = Tokenizer::load(kSource / "models" / "tales-6m");
  const int known = tokenizer.vocab_size();
  tokenizer.extend(known + 3);
  CHECK(tokenizer.vocab_size() == known + 3);
  CHECK(tokenizer.decode(std::vector<int>{known, 32, known + 2}) == tales().decode(std::vector<int>{32}));
  for (const int token : tokenizer.encode_with_special_tokens(fmt::format("<{}>", known)))
    CHECK(token < known);
  CHECK(tokenizer.encode("").empty());
  tokenizer.extend(known);  // it has more already
  CHECK(tokenizer.vocab_size() == known + 3);
}

TEST_CASE("a pair is found by both of its tokens, in vocabularies of every size") {
  const std::vector<int> ids{0, 1, 255, 256, 65'535, 65'536, 65'537, 131'072, 262'143, 16'777'216};
  std::vector<TokenizerDescription::Merge> merges;
  std::map<std::pair<int, int>, int> tokens;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t k = i % 3; k < ids.size(); k += 2) {
      const int token = static_cast<int>(1000 + merges.size());
      merges.push_back({ids[i], ids[k], token, -token});
      tokens[{ids[i], ids[k]}] = token;
    }
  }
  const MergeTable table(merges);
  for (const int left : ids) {
    for (const int right : ids) {
      CAPTURE(left);
      CAPTURE(right);
      const MergeTable::Merge* const found = table.find(left, right);
      const auto want = tokens.find({left, right});
      REQUIRE((found != nullptr) == (want != tokens.end()));
      if (found == nullptr) continue;
      CHECK(found->token == want->second);
      CHECK(found->rank == -want->second);
    }
  }
}

TEST_CASE("a stream shows a character once its last byte has arrived, and not before") {
  const std::vector<int> ids =
      tales().encode_with_special_tokens("a\U0001F600b");  // the emoji is four tokens of one byte
  REQUIRE(ids.size() == 6);
  StreamDecoder decoder(tales());
  CHECK(decoder.push(ids[0]) == "a");
  CHECK(decoder.push(ids[1]) == "");
  CHECK(decoder.push(ids[2]) == "");
  CHECK(decoder.push(ids[3]) == "");
  CHECK(decoder.push(ids[4]) == "\U0001F600");
  CHECK(decoder.push(ids[5]) == "b");
  CHECK(decoder.finish() == "");

  decoder.push(ids[1]);
  CHECK(decoder.push(ids[5]) ==
        "\uFFFD"
        "b");
  decoder.push(ids[1]);
  CHECK(decoder.finish() == "\uFFFD");
  CHECK(decoder.finish() == "");
}

TEST_CASE("random tokens stream to the same valid text that they decode to") {
  std::mt19937 random(7);
  for (const Tokenizer* tokenizer : {&gpt2(), &tales()}) {
    for (int round = 0; round < 500; ++round) {
      std::vector<int> ids;
      for (unsigned i = 0; i < random() % 30; ++i) {
        // Half of them from the first 256, most of which are not characters alone.
        const int range = random() % 2 ? 256 : tokenizer->vocab_size();
        ids.push_back(static_cast<int>(random() % static_cast<unsigned>(range)));
      }
      REQUIRE(streamed(*tokenizer, ids) == tokenizer->decode(ids));
      REQUIRE(tokenizer->decode(ids) == to_valid_utf8(joined(*tokenizer, ids)));
    }
  }
}

TEST_CASE("an impossible vocabulary is an error that names the file and the token") {
  const SmallVocabulary good;
  CHECK(error_of(good.vocab.dump(), good.merges) == "");
  const auto error = [&](const json& vocab) { return error_of(vocab.dump(), ""); };
  const auto changed = [&](const std::string& token, const json& id) {
    json vocab = good.vocab;
    vocab[token] = id;
    return error(vocab);
  };
  CHECK(says(error_of("", ""), "some/vocab.json", "not valid JSON"));
  CHECK(says(error_of("{\"a\": 0,", ""), "some/vocab.json", "not valid JSON"));
  CHECK(says(error_of("[]", ""), "some/vocab.json", "an array"));
  CHECK(says(error_of("{\"a\": 0, \"a\": 1}", ""), "some/vocab.json", "\"a\" twice"));
  CHECK(says(error_of("{}", ""), "some/vocab.json", "0x00"));
  for (const json& id : {json(-1), json(258), json(1.5), json("3"), json(nullptr), json::array(), json(1e300),
                         json(18446744073709551615u), json(4294967296)}) {
    CAPTURE(id.dump());
    CHECK(says(changed("new", id), "some/vocab.json", "\"new\"", "from 0 to 257"));
  }
  CHECK(says(changed("new", 5), "some/vocab.json", "\"new\"", "both have the id 5"));
  CHECK(changed("new", 257) == "");
  for (const char* token : {"a b", "\n", "\u00AD", "\u0144", "\u4E2D", "\U0001F600", "\u007F"}) {
    CAPTURE(token);
    CHECK(says(changed(token, 257), "some/vocab.json", "stands for no byte"));
  }
  for (int byte = 0; byte < 256; ++byte) {
    json vocab = good.vocab;
    vocab.erase(written(static_cast<unsigned char>(byte)));
    if (byte != 255) vocab[std::string(kEndOfText)] = byte;
    if (byte != 255) vocab[written(static_cast<unsigned char>(255))] = 255;
    if (byte == 255) vocab[std::string(kEndOfText)] = 255;
    CHECK(says(error(vocab), "some/vocab.json", "byte 0x"));
  }
}

TEST_CASE("a vocabulary may have no end of text, or one of another name") {
  json vocab = SmallVocabulary().vocab;
  const int end = vocab.at(std::string(kEndOfText));
  vocab.erase(std::string(kEndOfText));
  vocab["</s>"] = end;
  const Tokenizer named(read_vocab_and_merges(vocab.dump(), "", "v", "m"), "v");
  CHECK(named.encode("a</s>").size() == 5);
  CHECK(named.decode(std::vector<int>{end}) == "</s>");
}

TEST_CASE("files with a byte order mark are read as those without") {
  const TemporaryFolder folder;
  const std::filesystem::path plain = kReference / "gpt2-tokenizer";
  for (const std::string name : {"vocab.json", "merges.txt"}) {
    std::ifstream file(plain / name, std::ios::binary);
    folder.write(name, "\xef\xbb\xbf" + std::string(std::istreambuf_iterator<char>(file), {}));
  }
  CHECK(Tokenizer::load(folder.path()).encode("Once upon a time") == gpt2().encode("Once upon a time"));
}

TEST_CASE("an impossible list of merges is an error that names the file and the line") {
  SmallVocabulary good;
  good.merge("a", "b");
  good.merge("ab", "c");
  const auto error = [&](const std::string& merges) { return error_of(good.vocab.dump(), merges); };
  CHECK(error("#version: 0.2\na b\nab c\n") == "");
  for (const char* line : {"ab", "a", " b", "a ", "a b c", "a  b", " ", "a b ", " a b"}) {
    CAPTURE(line);
    CHECK(says(error(std::string("#version: 0.2\na b\n") + line + "\nab c\n"), "some/merges.txt, line 3",
               "not two tokens with one space"));
  }
  CHECK(says(error("a b\n#version: 0.2\nab c\n"), "some/merges.txt, line 2"));
  CHECK(says(error("a b\n\nab c\n"), "some/merges.txt, line 2", "\"\""));
  CHECK(says(error("a b\n\n\n"), "some/merges.txt, line 2"));
  CHECK(says(error("a b\nx y\n"), "some/merges.txt, line 2", "\"xy\" is not in the vocabulary"));
  CHECK(says(error("a b\na bc\n"), "some/merges.txt, line 2", "\"bc\" is not in the vocabulary"));
  CHECK(says(error("a b\nabc \u4E2D\n"), "some/merges.txt, line 2", "not in the vocabulary"));
  CHECK(says(error("a b\n\xFF\n"), "some/merges.txt, line 2"));
}

TEST_CASE("of a merge that is listed twice, the later place counts, as in tokenizers") {
  SmallVocabulary small;
  small.merge("a", "b");
  small.merge("b", "c");
  const auto tokens = [&](const std::string& merges) {
    return made_of(small.vocab.dump(), merges).encode("abc");
  };
  const int a = small.vocab["a"], c = small.vocab["c"], ab = small.vocab["ab"], bc = small.vocab["bc"];
  CHECK(tokens("a b\nb c\n") == std::vector<int>{ab, c});
  CHECK(tokens("a b\nb c\na b\n") == std::vector<int>{a, bc});
  CHECK(tokens("a b\na b\nb c\nb c\n") == std::vector<int>{ab, c});
}

TEST_CASE("the lines of merges.txt may end as on Windows, and the last need not end") {
  SmallVocabulary good;
  good.merge("a", "b");
  good.merge("ab", "c");
  const std::string vocab = good.vocab.dump();
  for (const char* merges : {"#version: 0.2\na b\nab c\n", "#version: 0.2\r\na b\r\nab c\r\n", "a b\nab c",
                             "a b\r\nab c", "a b\nab c\n\r\n", "a b\nab c\n\n"}) {
    CAPTURE(merges);
    const Tokenizer tokenizer = made_of(vocab, merges);
    CHECK(tokenizer.encode_with_special_tokens("abc") == std::vector<int>{good.vocab["abc"].get<int>()});
  }
}

TEST_CASE("a folder without the files of a tokenizer is an error with the path") {
  const TemporaryFolder folder;
  const auto error = [&] { return error_message([&] { Tokenizer::load(folder.path()); }); };
  CHECK(says(error(), folder.path().string(), "neither tokenizer.json nor vocab.json"));
  folder.write("vocab.json", SmallVocabulary().vocab.dump());
  CHECK(says(error(), folder.path().string(), "merges.txt does not exist"));
  std::filesystem::create_symlink("merges.txt", folder.path() / "merges.txt");
  CHECK(says(error(), folder.path().string(), "merges.txt cannot be read: Too many levels"));
  std::filesystem::remove(folder.path() / "merges.txt");
  folder.write("merges.txt", "#version: 0.2\n");
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json", "vocab.json"}) {
    std::filesystem::rename(folder.path() / "vocab.json", folder.path() / "kept");
    std::filesystem::create_symlink(name, folder.path() / name);
    CHECK(says(error(), name + " cannot be read: Too many levels"));
    std::filesystem::remove(folder.path() / name);
    folder.write(name, "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 2\n");
    CHECK(says(error(), name, "is only a git-lfs pointer", "git lfs pull"));
    std::filesystem::remove(folder.path() / name);
    std::filesystem::rename(folder.path() / "kept", folder.path() / "vocab.json");
  }
  std::filesystem::remove(folder.path() / "merges.txt");
  std::filesystem::create_directory(folder.path() / "merges.txt");
  CHECK(says(error(), "merges.txt is a folder"));
  std::filesystem::remove(folder.path() / "merges.txt");
  folder.write("merges.txt", "#version: 0.2\nq\n");
  CHECK(says(error(), folder.path().string(), "merges.txt, line 2"));
  folder.write("merges.txt", "#version: 0.2\n");
  CHECK(error() == "");
}
