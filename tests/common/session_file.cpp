// Conversations in files: what is read is what was saved, or one sentence.
#include "common/program/session_file.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <string_view>

#include "common/base/file.h"
#include "common/base/xxh64.h"
#include "common/model/model_folder.h"
#include "static_kv_cache.h"
#include "tests/error_message.h"
#include "tests/tiny_model.h"

using namespace staircase;

namespace {

const ChatTemplate& plain() {
  static const ChatTemplate loaded("{% for message in messages %}{{ message.content }}{% endfor %}", {},
                                   "plain");
  return loaded;
}

/// A model of two layers, and a file for its conversations.
struct Place {
  TemporaryFolder folder;
  std::filesystem::path file = folder.path() / "talk";

  explicit Place(const TinyModel& weights = TinyModel()) {
    std::filesystem::create_directory(folder.path() / "model");
    weights.write(folder.path() / "model");
  }

  Model model(DType cache = DType::kFloat32, DType dtype = DType::kFloat32) const {
    Model loaded = Model::load(folder.path() / "model", make_cpu_device(1), dtype);
    loaded.use_cache_dtype(cache);
    return loaded;
  }
};

std::string bytes_of(const Tensor& tensor) {
  const auto* const begin = tensor.data<char>();
  return {begin, begin + tensor.bytes()};
}

/// A cache with that many positions of a text of its own.
struct Filled {
  StaticKvCache cache;

  Filled(Model& model, int length) : cache(model) {
    std::vector<int> tokens;
    for (int i = 0; i < length; ++i) tokens.push_back((i * 37 + 5) % 101);
    if (length > 0) model.next_logits(tokens, cache);
  }
};

/// The kept positions of all layers.
std::string kept(KvCache& cache, Model& model, int length) {
  std::string all;
  for (int l = 0; l < model.config().n_layer; ++l) {
    const KeysValues layer = cache.layer(l);
    for (const Tensor& tensor : {layer.keys, layer.values}) {
      Tensor part = model.device().allocate(tensor.dtype(), {1, tensor.dim(1), length, tensor.dim(3)});
      if (length > 0) model.device().copy_positions(tensor, 0, length, part, 0);
      all += bytes_of(part);
    }
  }
  return all;
}

Session example(int cached) {
  Session session;
  session.messages = {{"system", "You are \xff a \0 fox."}, {"user", "Who?"}, {"assistant", ""}};
  session.dropped = {{"user", "a"}, {"assistant", "b\n"}};
  session.known.push_back({{"Who?\xe2\x82", {true, false, true, false, false, true}}, {1, 2, 100}});
  session.known.push_back({{"", {}}, {}});
  for (int i = 0; i <= cached; ++i) session.tokens.push_back(i % 101);
  session.firsts = {0, cached / 2};
  session.cached = cached;
  session.seed = 4'000'000'000;
  session.generator.seed(5);
  session.generator.discard(1000);
  return session;
}

void save(const SessionFile& file, Model& model, KvCache& cache, const Session& session) {
  SessionWriter writer = file.write(session);
  for (int l = 0; l < model.config().n_layer; ++l) writer.put(model.device(), cache.layer(l));
  writer.finish();
}

struct Read {
  Session session;
  std::string kept;
};

/// Nothing if there is no file.
std::optional<Read> read(const SessionFile& file, Model& model) {
  auto reader = file.read();
  if (!reader) return {};
  StaticKvCache cache(model);
  cache.append(0, reader->session().cached);
  for (int l = 0; l < model.config().n_layer; ++l) reader->get(model.device(), cache.layer(l));
  return Read{reader->session(), kept(cache, model, reader->session().cached)};
}

bool equal(const Session& a, const Session& b) {
  const auto same = [](const KnownTokens::KnownText& x, const KnownTokens::KnownText& y) {
    return x.rendered.text == y.rendered.text && x.rendered.own == y.rendered.own && x.tokens == y.tokens;
  };
  return a.messages == b.messages && a.dropped == b.dropped && std::ranges::equal(a.known, b.known, same) &&
         a.tokens == b.tokens && a.firsts == b.firsts && a.cached == b.cached && a.seed == b.seed &&
         a.generator == b.generator;
}

/// Whether a text is one sentence about the file "talk" that ends without a full stop.
bool is_sentence(const std::string& text) {
  return contains(text, "talk") && !contains(text, "\n") && text.size() < 300 && !text.ends_with('.');
}

/// A new file: to truncate one makes some file systems wait for the disk.
void write(const std::filesystem::path& file, std::string_view bytes) {
  std::filesystem::remove(file);
  std::ofstream out(file, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// A file of these parts, as the format describes it.
std::string built(const std::vector<std::string>& parts, std::string begin = "staircase chat 1") {
  for (std::size_t number = 0; number < parts.size(); ++number) {
    std::string part = parts[number];
    const std::uint64_t size = part.size();
    part.resize((size + 15) / 16 * 16);
    const std::uint64_t sum = xxh64(std::as_bytes(std::span(part)), size + (number << 40));
    begin.append(reinterpret_cast<const char*>(&size), 8).append(reinterpret_cast<const char*>(&sum), 8);
    begin += part;
  }
  return begin;
}

/// The reverse.
std::vector<std::string> parts_of(std::string_view file) {
  std::vector<std::string> parts;
  for (std::size_t at = 16; at < file.size();) {
    std::uint64_t size = 0;
    file.copy(reinterpret_cast<char*>(&size), 8, at);
    parts.emplace_back(file.substr(at + 16, size));
    at += 16 + (size + 15) / 16 * 16;
  }
  return parts;
}

}  // namespace

TEST_CASE("the checksum is XXH64") {  // the values are those of the reference implementation
  const auto hash = [](std::string_view text, std::uint64_t seed = 0) {
    return xxh64(std::as_bytes(std::span(text)), seed);
  };
  CHECK(hash("") == 0xef46db3751d8e999);
  CHECK(hash("a") == 0xd24ec4f1a98c6e5b);
  CHECK(hash("abc") == 0x44bc2cf5ad770999);
  CHECK(hash("The Fox and the Crow, and a piece of cheese") == 0x68bc6b38c0dd699e);
  CHECK(hash("0123456789abcdef0123456789abcdef") == 0x642a94958e71e6c5);
  CHECK(hash("0123456789abcdef0123456789abcdef0123456789abcdefghijklm", 7) == 0xc0b017c948556bd0);
}

TEST_CASE("a session is read as it was saved, with a cache of any type and length") {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (const int cached : {0, 1, 2, 36}) {
      CAPTURE(to_string(dtype));
      CAPTURE(cached);
      const Place place;
      Model model = place.model(dtype);
      Filled filled(model, cached);
      const SessionFile file(place.file, model, plain());
      CHECK_FALSE(read(file, model).has_value());
      save(file, model, filled.cache, example(cached));
      const auto found = read(file, model);
      REQUIRE(found.has_value());
      CHECK(equal(found->session, example(cached)));
      CHECK(found->kept == kept(filled.cache, model, cached));
      save(file, model, filled.cache, example(cached));  // also in the place of an older one
      CHECK(read(file, model).has_value());
    }
  }
}

TEST_CASE("a session with a cache of 8 or 4 bits is read with its scales") {
  const Place place;
  for (const DType dtype : {DType::kInt8, DType::kInt4}) {
    CAPTURE(to_string(dtype));
    Model model = Model::load(STAIRCASE_SOURCE_TREE "/models/tales-gqa-1m", make_cpu_device(1));
    model.use_cache_dtype(dtype);
    Filled filled(model, 36);
    const SessionFile file(place.folder.path() / to_string(dtype), model, plain());
    save(file, model, filled.cache, example(36));
    const auto found = read(file, model);
    REQUIRE(found.has_value());
    CHECK(found->kept == kept(filled.cache, model, 36));
  }
}

TEST_CASE("the file has the parts that its description names") {
  const Place place;
  Model model = place.model();
  Filled filled(model, 3);
  save(SessionFile(place.file, model, plain()), model, filled.cache, example(3));
  const std::string bytes = read_file(place.file);
  const std::vector<std::string> parts = parts_of(bytes);
  CHECK(built(parts) == bytes);
  REQUIRE(parts.size() == 2 + 2 * 2 + 1);
  CHECK(parts[2] + parts[3] + parts[4] + parts[5] == kept(filled.cache, model, 3));
  CHECK(parts[2].size() == std::size_t{3} * 24 * 4);
  CHECK(parts[6].empty());
}

TEST_CASE("each changed byte is noticed, and each missing end") {
  for (const int cached : {0, 3}) {
    CAPTURE(cached);
    const Place place;
    Model model = place.model();
    Filled filled(model, cached);
    const SessionFile file(place.file, model, plain());
    save(file, model, filled.cache, example(cached));
    const std::string whole = read_file(place.file);
    const auto refused = [&](const std::string& bytes) {
      write(place.file, bytes);
      return is_sentence(error_message([&] { read(file, model); }));
    };
    int missed = 0;
    for (std::size_t at = 0; at < whole.size(); ++at) {
      constexpr int kChanges[] = {0x01, 0x80, 0xff};
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ kChanges[at % 3]);
      missed += !refused(changed);
      missed += !refused(whole.substr(0, at));
    }
    CHECK(missed == 0);
    CHECK(refused(whole + '\0'));
    CHECK(refused(whole + whole.substr(16)));
    write(place.file, whole);
    CHECK(read(file, model).has_value());
  }
}

TEST_CASE("a refusal names the bytes that were changed, and parts in another order are refused") {
  const Place place;
  Model model = place.model();
  Filled filled(model, 3);
  const SessionFile file(place.file, model, plain());
  save(file, model, filled.cache, example(3));
  const std::string whole = read_file(place.file), name = place.file.string();
  // The header of the file has 16 bytes; a part begins with its size and its checksum, 8 bytes each, and is
  // padded to a multiple of 16.
  std::vector<std::size_t> begins{16};
  while (begins.back() < whole.size()) {
    std::uint64_t size = 0;
    std::memcpy(&size, whole.data() + begins.back(), sizeof size);
    begins.push_back(begins.back() + 16 + (size + 15) / 16 * 16);
  }
  REQUIRE(begins.size() > 6);
  const auto refusal = [&](const std::string& bytes) {
    write(place.file, bytes);
    return error_message([&] { read(file, model); });
  };
  for (std::size_t part = 0; part < 3; ++part) {
    std::string changed = whole;
    changed[begins[part] + 16] ^= 1;
    CHECK(refusal(changed) ==
          fmt::format(
              "{} was changed between the bytes {} and {}; restore a copy of it, or choose another file",
              name, begins[part], begins[part + 1]));
  }
  CHECK(
      refusal(whole.substr(0, begins[1] + 20)) ==
      fmt::format(
          "{} is cut off after {} bytes, or was changed at byte {}; restore a copy of it, or choose another "
          "file",
          name, begins[1] + 20, begins[1]));
  CHECK(refusal(whole + "more") ==
        fmt::format("{} continues after its end at byte {}; restore a copy of it, or choose another file",
                    name, whole.size()));
  // Keys and values of a layer have the same size.
  const std::size_t keys = begins[2], values = begins[3], next = begins[4];
  REQUIRE(values - keys == next - values);
  CHECK(!refusal(whole.substr(0, keys) + whole.substr(values, next - values) +
                 whole.substr(keys, values - keys) + whole.substr(next))
             .empty());
}

TEST_CASE("what happens to a larger file at random is noticed, too") {
  const Place place(TinyModel(1, 101, 2000));
  Model model = place.model();
  const auto& path = place.file;
  Filled filled(model, 1500);
  const SessionFile file(path, model, plain());
  save(file, model, filled.cache, example(1500));
  const std::string whole = read_file(path), numbers = kept(filled.cache, model, 1500);
  REQUIRE(whole.size() > 500'000);
  std::mt19937 generator(1);
  const auto below = [&](std::size_t n) { return generator() % n; };
  int wrong = 0, refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string changed = whole;
    const std::size_t at = below(whole.size()), length = 1 + below(300);
    if (i % 5 == 0) changed.resize(at);
    if (i % 5 == 1) changed.erase(at, length);
    if (i % 5 == 2) changed.insert(at, whole.substr(below(whole.size()), length));
    if (i % 5 == 3) changed.replace(at, length, whole.substr(below(whole.size()), length));
    if (i % 5 == 4) changed[at] = static_cast<char>(below(256));
    write(path, changed);
    std::optional<Read> found;
    const std::string message = error_message([&] { found = read(file, model); });
    refused += !message.empty();
    wrong += message.empty() ? changed != whole || found->kept != numbers : !is_sentence(message);
  }
  CHECK(wrong == 0);
  CHECK(refused > 1950);
}

TEST_CASE("a file with right checksums and any contents is read or refused") {
  const Place place;
  Model model = place.model();
  Filled filled(model, 2);
  const SessionFile file(place.file, model, plain());
  save(file, model, filled.cache, example(2));
  const std::vector<std::string> parts = parts_of(read_file(place.file));
  std::mt19937 generator(1);
  int wrong = 0, refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<std::string> changed = parts;
    std::string& part = changed[i % 3 == 0 ? generator() % changed.size() : 1];
    if (part.empty()) part = "more";
    const std::size_t at = generator() % std::min<std::size_t>(part.size(), 300);
    if (i % 2 == 0) part.resize(at);
    if (i % 2 == 1) part[at] = static_cast<char>(generator());
    if (i % 7 == 0) part.replace(at / 8 * 8, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f");
    write(place.file, built(changed));
    const std::string message = error_message([&] { read(file, model); });
    refused += !message.empty();
    wrong += !message.empty() && !is_sentence(message);
  }
  CHECK(wrong == 0);
  CHECK(refused > 1500);
}

TEST_CASE("another token, another length and another tensor are refused") {
  const Place place;
  Model model = place.model();
  Filled filled(model, 2);
  const SessionFile file(place.file, model, plain());
  const auto refusal = [&](const Session& session) {
    save(file, model, filled.cache, session);
    return error_message([&] { read(file, model); });
  };
  const std::string sentence =
      place.file.string() + " does not hold what a saved conversation needs; choose another file";
  Session session = example(2);
  CHECK(refusal(session).empty());
  session.tokens[0] = 101;
  CHECK(refusal(session) == sentence);
  session.tokens[0] = -1;
  CHECK(refusal(session) == sentence);
  session = example(2);
  session.known[0].tokens[2] = 101;
  CHECK(refusal(session) == sentence);
  session = example(2);
  session.known[0].rendered.own.pop_back();
  CHECK(refusal(session) == sentence);
  session = example(2);
  session.tokens.resize(1);
  CHECK(refusal(session) == sentence);
  save(file, model, filled.cache, example(2));
  std::vector<std::string> parts = parts_of(read_file(place.file));
  parts[3].resize(parts[3].size() - 4);
  write(place.file, built(parts));
  CHECK(error_message([&] { read(file, model); }) == sentence);
}

TEST_CASE("a session of another model, template, type, version or context is refused") {
  const Place place, other(TinyModel(2));
  Model model = place.model();
  Filled filled(model, 3);
  save(SessionFile(place.file, model, plain()), model, filled.cache, example(3));
  const std::string name = place.file.string();
  const auto refusal = [&](Model reader, const ChatTemplate& chat_template = plain()) {
    return error_message([&] { SessionFile(place.file, reader, chat_template).read(); });
  };
  CHECK(refusal(place.model()).empty());
  CHECK(refusal(other.model()) ==
        name + " was saved with another model; use the one that it began with, or another file");
  CHECK(refusal(place.model(), ChatTemplate("{{ messages }}", {}, "other")) ==
        name + " was saved with another chat template; use the one that it began with, or another file");
  CHECK(
      refusal(place.model(DType::kFloat32, DType::kBFloat16)) ==
      name +
          " was saved with --dtype float32, and this program uses bfloat16; choose float32, or another file");
  CHECK(
      refusal(place.model(DType::kFloat16)) ==
      name +
          " was saved with --cache-dtype float32, and this program uses float16; choose float32, or another "
          "file");
  std::string bytes = read_file(place.file);
  bytes[15] = '2';
  write(place.file, bytes);
  CHECK(refusal(place.model()) ==
        name + " has version 2 of the format, and this program reads version 1; choose another file");
  write(place.file, "[]");
  CHECK(refusal(place.model()) == name + " is not a saved conversation; choose another file");
  write(place.file, "");
  CHECK(refusal(place.model()) == name + " is not a saved conversation; choose another file");
}

TEST_CASE("more tokens than the context are refused") {
  const Place place;
  Model model = place.model();
  Filled filled(model, 3);
  const SessionFile file(place.file, model, plain());
  Session session = example(3);
  session.tokens.resize(37);
  save(file, model, filled.cache, session);
  CHECK(file.read().has_value());
  session.tokens.resize(38);
  save(file, model, filled.cache, session);
  CHECK(error_message([&] { file.read(); }) ==
        place.file.string() +
            " has 38 tokens, and the model sees at most 37; use a larger --context, or another file");
}

TEST_CASE("a model with windows reads its sessions with their context alone, and another model with any") {
  const TemporaryFolder folder;
  for (const std::string name : {"tales-window-1m", "tales-1m"}) {
    CAPTURE(name);
    Model model = Model::load(find_model(name), make_cpu_device(1));
    model.limit_context(100);
    Filled filled(model, 3);
    const std::filesystem::path file = folder.path() / name;
    save(SessionFile(file, model, plain()), model, filled.cache, example(3));
    model.limit_context(99);
    CHECK(error_message([&] { SessionFile(file, model, plain()).read(); }) ==
          (name == "tales-1m"
               ? ""
               : file.string() + " was saved with --context 100, and this program uses 99; choose 100, or "
                                 "another file"));
  }
}

TEST_CASE("a weight that changes in the middle of a tensor makes another model") {
  const Place place;
  Model model = place.model();
  Filled filled(model, 3);
  save(SessionFile(place.file, model, plain()), model, filled.cache, example(3));
  TinyModel changed(1);
  std::vector<float>& values = changed.tensors.at("h.1.mlp.c_fc.weight").values;
  values[values.size() / 2] += 0.25f;
  changed.write(place.folder.path() / "model");
  Model again = place.model();
  const SessionFile file(place.file, again, plain());
  CHECK(contains(error_message([&] { file.read(); }), "was saved with another model"));
}

TEST_CASE("only one program at a time has the file, under any of its names") {
  const Place place;
  Model model = place.model();
  write(place.file, "");
  const auto link = place.folder.path() / "also-talk";
  std::filesystem::create_symlink(place.file, link);
  {
    const SessionFile file(place.file, model, plain());
    for (const auto& name : {place.file, link}) {
      CHECK(error_message([&] { SessionFile(name, model, plain()); }) ==
            name.string() + " is in use by another program; end that one, or choose another file");
    }
  }
  CHECK(error_message([&] { SessionFile(link, model, plain()); }).empty());
  CHECK_FALSE(std::filesystem::exists(place.file.string() + ".lock"));
}

TEST_CASE("a session that is not finished leaves the one before, and no other file") {
  const Place place;
  Model model = place.model();
  Filled filled(model, 3);
  {
    const SessionFile file(place.file, model, plain());
    save(file, model, filled.cache, example(3));
    const std::string before = read_file(place.file);
    {
      SessionWriter writer = file.write(example(2));
      writer.put(model.device(), filled.cache.layer(0));
      CHECK(std::filesystem::exists(place.file.string() + ".part"));
    }
    CHECK(read_file(place.file) == before);
    CHECK_FALSE(std::filesystem::exists(place.file.string() + ".part"));
    write(place.file.string() + ".part", "left by a program that was killed");
  }
  const SessionFile file(place.file, model, plain());
  CHECK_FALSE(std::filesystem::exists(place.file.string() + ".part"));
  save(file, model, filled.cache, example(2));
  CHECK(read(file, model)->session.cached == 2);
}

TEST_CASE("a disk that is full leaves the session before, and no other file") {
  const Place place;
  Model model = place.model();
  Filled filled(model, 36);
  const SessionFile file(place.file, model, plain());
  save(file, model, filled.cache, example(3));
  const std::string before = read_file(place.file);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit unlimited{};
  getrlimit(RLIMIT_FSIZE, &unlimited);
  const auto saved_within = [&](rlim_t bytes) {
    const rlimit full{bytes, unlimited.rlim_max};
    setrlimit(RLIMIT_FSIZE, &full);
    const std::string message = error_message([&] { save(file, model, filled.cache, example(36)); });
    setrlimit(RLIMIT_FSIZE, &unlimited);
    return message;
  };
  for (const rlim_t bytes : {0, 1, 100, 10'000, 20'000}) {
    CAPTURE(bytes);
    CHECK(saved_within(bytes) == place.file.string() + " cannot be saved: File too large");
    CHECK(read_file(place.file) == before);
    CHECK_FALSE(std::filesystem::exists(place.file.string() + ".part"));
  }
  CHECK(saved_within(100'000).empty());
  CHECK(read(file, model)->session.cached == 36);
}

TEST_CASE("a place where nothing can be written is refused before any question") {
  const Place place;
  Model model = place.model();
  const auto missing = place.folder.path() / "missing" / "talk";
  CHECK(error_message([&] { SessionFile(missing, model, plain()); }) ==
        missing.string() + " cannot be saved: No such file or directory");
  CHECK(error_message([&] { SessionFile(place.folder.path(), model, plain()); }) ==
        place.folder.path().string() + " is a folder, not a file");
}
