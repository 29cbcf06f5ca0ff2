#include "common/program/session_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <sstream>
#include <system_error>

#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/quoted.h"
#include "common/base/xxh64.h"
#include "common/model/checkpoint.h"
#include "common/model/fingerprint.h"

namespace staircase {
namespace {

constexpr std::string_view kMagic = "staircase chat ";
constexpr char kVersion = '1';
constexpr std::size_t kAlignment = 16;

/// Thrown if the checksums are right but the contents are not a session's: another program wrote the file.
struct Unexpected {};

std::size_t padded(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t size, std::uint64_t number) {
  return xxh64(bytes, size + (number << 40));
}

/// Packs values into bytes: a number takes 8 bytes, and a text follows its length.
class Packer {
 public:
  void number(std::uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  void messages(const std::vector<Message>& values) {
    number(values.size());
    for (const Message& message : values) {
      text(message.role);
      text(message.content);
    }
  }
  void tokens(const std::vector<int>& values) {
    text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int)});
  }

  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Unpacks the bytes of a Packer. Throws Unexpected for bytes that a Packer does not write.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes)
      : rest_(reinterpret_cast<const char*>(bytes.data()), bytes.size()) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, cut(sizeof value).data(), sizeof value);
    return value;
  }
  /// A number that must not exceed `most`.
  std::uint64_t number(std::uint64_t most) {
    const std::uint64_t value = number();
    if (value > most) throw Unexpected();
    return value;
  }
  std::string_view text() { return cut(number()); }
  std::vector<Message> messages() {
    std::vector<Message> values;
    for (std::uint64_t left = number(); left > 0; --left) {
      const std::string_view role = text(), content = text();
      values.push_back({std::string(role), std::string(content)});
    }
    return values;
  }
  bool at_end() const { return rest_.empty(); }
  std::vector<int> tokens(int vocabulary) {
    const std::string_view bytes = text();
    std::vector<int> values(bytes.size() / sizeof(int));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(int));
    const auto is_foreign = [&](int token) { return token < 0 || token >= vocabulary; };
    if (std::ranges::any_of(values, is_foreign)) throw Unexpected();
    return values;
  }

 private:
  std::string_view cut(std::uint64_t size) {
    if (size > rest_.size()) throw Unexpected();
    const std::string_view front = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return front;
  }

  std::string_view rest_;
};

/// The traits of a session. Options have their names and values; the other values are words and hashes.
std::vector<SessionTrait> traits_of(const Model& model, const ChatTemplate* chat_template) {
  const std::uint64_t weights = fingerprint(model.path(), Checkpoint::open(model.path()), DType::kFloat32,
                                            9);  // --dtype is a separate trait
  std::vector<SessionTrait> traits{{"program", chat_template != nullptr ? "a chat" : "a server"},
                                   {"model", fmt::format("{:016x}", weights)},
                                   {"--dtype", std::string(to_string(model.dtype()))},
                                   {"--cache-dtype", std::string(to_string(model.kv_dtype()))}};
  if (chat_template != nullptr) {
    const std::uint64_t source = xxh64(std::as_bytes(std::span(chat_template->source())));
    traits.push_back({"chat template", fmt::format("{:016x}", source)});
  }
  // The context decides which layers keep only a window.
  if (!model.config().windows.empty())
    traits.push_back({"--context", fmt::format("{}", model.config().n_positions)});
  return traits;
}

std::string packed(const std::vector<SessionTrait>& traits) {
  Packer packer;
  for (const SessionTrait& trait : traits) packer.text(trait.value);
  return packer.take();
}

/// Throws Error if a saved trait differs from this program's.
void compare(const std::vector<SessionTrait>& traits, Unpacker saved, const std::string& file) {
  for (const auto& [name, value] : traits) {
    const std::string_view other = saved.text();
    if (value == other) continue;
    if (!name.starts_with("--"))
      throw Error("{} was saved with another {}; use the one that it began with, or another file", file,
                  name);
    throw Error("{} was saved with {} {}, and this program uses {}; choose {}, or another file", file, name,
                typed(other), value, typed(other));
  }
}

std::string packed(const Session& session) {
  Packer packer;
  packer.messages(session.messages);
  packer.messages(session.dropped);
  packer.number(session.known.size());
  for (const auto& [rendered, tokens] : session.known) {
    packer.text(rendered.text);
    packer.text(std::string(rendered.own.begin(), rendered.own.end()));
    packer.tokens(tokens);
  }
  packer.tokens(session.tokens);
  packer.tokens(session.firsts);
  packer.number(static_cast<std::uint64_t>(session.cached));
  packer.number(session.seed);
  std::ostringstream generator;
  generator << session.generator;
  packer.text(generator.str());
  if (session.held > session.cached) packer.number(static_cast<std::uint64_t>(session.held));
  return packer.take();
}

Session unpacked(Unpacker saved, int vocabulary) {
  Session session;
  session.messages = saved.messages();
  session.dropped = saved.messages();
  for (std::uint64_t left = saved.number(); left > 0; --left) {
    const std::string_view text = saved.text(), own = saved.text();
    if (own.size() != text.size()) throw Unexpected();
    session.known.push_back(
        {{std::string(text), std::vector<bool>(own.begin(), own.end())}, saved.tokens(vocabulary)});
  }
  session.tokens = saved.tokens(vocabulary);
  session.firsts = saved.tokens(std::numeric_limits<int>::max());
  session.cached = static_cast<int>(saved.number(session.tokens.size()));
  session.seed = static_cast<unsigned>(saved.number(std::numeric_limits<unsigned>::max()));
  std::istringstream generator{std::string(saved.text())};
  if (!(generator >> session.generator)) throw Unexpected();
  session.held = session.cached;
  if (!saved.at_end()) session.held = static_cast<int>(saved.number(std::numeric_limits<int>::max()));
  if (session.held < session.cached) throw Unexpected();
  return session;
}

/// Memory for the first `count` positions of `kept`. The host copies it in units of 32-bit integers.
Tensor compact(Device& device, const Tensor& kept, int count, Tensor& memory) {
  const Shape shape{1, kept.dim(1), count, kept.dim(3)};
  const auto words = static_cast<std::int64_t>(padded(bytes_of(kept.dtype(), shape)) / sizeof(std::int32_t));
  if (memory.size() != words) memory = device.allocate(DType::kInt32, {words});
  return memory.viewed_as(kept.dtype(), shape);
}

/// The first position that a layer of a cache still holds after it has held `held` positions. A layer with
/// blocks is a ring here: each position overwrites the position that is one ring older.
int first_there(const KeysValues& layer, int held) {
  if (layer.blocks.size() == 0) return 0;
  return std::max(0, held - static_cast<int>(layer.keys.dim(0) * layer.keys.dim(2)));
}

/// Copies the positions from `first` on between a layer of a cache, which may be a ring, and compact memory.
void copy(Device& device, const KeysValues& layer, Tensor kept, int first, Tensor compacted, bool to_cache) {
  const auto count = static_cast<int>(compacted.dim(2));
  const bool is_ring = layer.blocks.size() > 0;
  const auto size = static_cast<int>(kept.dim(2)), n = static_cast<int>(kept.dim(0));  // block size; blocks
  for (int p = first; p < first + count;) {
    const int part = is_ring ? std::min(size - p % size, first + count - p) : count;
    Tensor memory = is_ring ? kept.rows(p / size % n, 1) : kept;
    const int at = is_ring ? p % size : p;
    if (to_cache) {
      device.copy_positions(compacted, p - first, part, memory, at);
    } else {
      device.copy_positions(memory, at, part, compacted, p - first);
    }
    p += part;
  }
}

/// Calls `write`, and throws Error if the operating system reports a fault.
void writing(const std::string& name, const std::function<void()>& write) {
  try {
    write();
  } catch (const std::system_error& fault) {
    throw Error("{} cannot be saved: {}", name, fault.code().message());
  }
}

}  // namespace

SessionParts::SessionParts(std::span<const std::byte> file, std::string name)
    : file_(file), name_(std::move(name)), at_(kAlignment) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(kMagic) || text.size() < kAlignment)
    throw Error("{} is not a saved conversation; choose another file", name_);
  if (text[kMagic.size()] != kVersion) {
    throw Error("{} has version {} of the format, and this program reads version {}; choose another file",
                name_, typed(text.substr(kMagic.size(), 1)), kVersion);
  }
}

SessionPart SessionParts::header() const {
  const std::span<const std::byte> rest = file_.subspan(at_);
  SessionPart part{};
  if (rest.size() >= sizeof part) std::memcpy(&part, rest.data(), sizeof part);
  // Padding would wrap a size near 2^64 to a small one.
  if (rest.size() < sizeof part || part.size > rest.size() || padded(part.size) > rest.size() - sizeof part) {
    throw Error(
        "{} is cut off after {} bytes, or was changed at byte {}; restore a copy of it, or choose "
        "another file",
        name_, file_.size(), at_);
  }
  return part;
}

std::span<const std::byte> SessionParts::skip() {
  const std::size_t size = padded(header().size);
  const auto bytes = file_.subspan(at_ + sizeof(SessionPart), size);
  at_ += sizeof(SessionPart) + size;
  ++number_;
  return bytes;
}

std::span<const std::byte> SessionParts::next() {
  const SessionPart part = header();
  const std::size_t begin = at_;
  const std::uint64_t number = number_;
  const auto bytes = skip();
  if (part.checksum != checksum(bytes, part.size, number)) {
    throw Error("{} was changed between the bytes {} and {}; restore a copy of it, or choose another file",
                name_, begin, at_);
  }
  return bytes.first(part.size);
}

void SessionParts::check() {
  while (header().size > 0) next();
  next();
  if (at_ == file_.size()) return;
  throw Error("{} continues after its end at byte {}; restore a copy of it, or choose another file", name_,
              at_);
}

SessionReader::SessionReader(const std::filesystem::path& file, const std::vector<SessionTrait>& traits,
                             int vocabulary, std::size_t most_tokens)
    : name_(typed(file.string())), file_(file), parts_(file_.bytes(), name_) {
  try {
    compare(traits, Unpacker(parts_.next()), name_);
    session_ = unpacked(Unpacker(parts_.next()), vocabulary);
  } catch (const Unexpected&) {
    refuse();
  }
  if (session_.tokens.size() > most_tokens) {
    throw Error("{} has {} tokens, and the model sees at most {}; use a larger --context, or another file",
                name_, session_.tokens.size(), most_tokens);
  }
  // With one thread, for example in a browser, checks everything at the end.
  const auto when = platform::processors() > 1 ? std::launch::async : std::launch::deferred;
  checked_ = std::async(when, [rest = parts_]() mutable { rest.check(); });
  if (session_.cached == 0) checked_.get();
}

void SessionReader::refuse() const {
  throw Error("{} does not hold what a saved conversation needs; choose another file", name_);
}

void SessionReader::get(Device& device, const KeysValues& layer) {
  get(device, layer, session_.cached);
}

void SessionReader::get(Device& device, const KeysValues& layer, int positions) {
  if (positions == 0) return;
  const int first = first_there(layer, session_.held);
  if (first >= positions) refuse();
  for (const Tensor& kept : {layer.keys, layer.values}) {
    const Tensor compacted = compact(device, kept, positions - first, memory_);
    if (parts_.header().size != compacted.bytes()) refuse();
    const auto bytes = parts_.skip();
    device.copy_from_host(
        std::span(reinterpret_cast<const std::int32_t*>(bytes.data()), bytes.size() / sizeof(std::int32_t)),
        memory_);
    copy(device, layer, kept, first, compacted, true);
  }
  if (parts_.header().size == 0) checked_.get();
}

SessionWriter::SessionWriter(const std::filesystem::path& file, const std::filesystem::path& part,
                             const std::vector<SessionTrait>& traits, const Session& session)
    : name_(typed(file.string())), cached_(session.cached), held_(std::max(session.held, session.cached)) {
  std::string begin = fmt::format("{}{}", kMagic, kVersion);
  writing(name_, [&] {
    out_.emplace(file, part);
    out_->write(std::as_bytes(std::span(begin)));
  });
  put(packed(traits));
  put(packed(session));
}

void SessionWriter::put(std::span<std::byte> bytes, std::size_t size) {
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(size), bytes.end(), std::byte{0});
  const SessionPart part{size, checksum(bytes, size, number_++)};
  writing(name_, [&] {
    out_->write(std::as_bytes(std::span(&part, 1)));
    out_->write(bytes);
  });
}

void SessionWriter::put(std::string bytes) {
  const std::size_t size = bytes.size();
  bytes.resize(padded(size));
  put(std::as_writable_bytes(std::span(bytes)), size);
}

void SessionWriter::put(Device& device, const KeysValues& layer) {
  put(device, layer, cached_);
}

void SessionWriter::put(Device& device, const KeysValues& layer, int positions) {
  if (positions == 0) return;
  const int first = first_there(layer, held_);
  for (const Tensor& kept : {layer.keys, layer.values}) {
    const Tensor compacted = compact(device, kept, positions - first, memory_);
    copy(device, layer, kept, first, compacted, false);
    buffer_.resize(padded(compacted.bytes()));
    device.copy_to_host(compacted, std::span(buffer_).first(compacted.bytes()));
    put(buffer_, compacted.bytes());
  }
}

void SessionWriter::finish() {
  put(std::string());
  writing(name_, [&] { out_->finish(); });
}

SessionFile::SessionFile(const std::filesystem::path& file, const Model& model,
                         const ChatTemplate& chat_template)
    : SessionFile(file, model, traits_of(model, &chat_template),
                  static_cast<std::size_t>(model.config().n_positions)) {}

SessionFile::SessionFile(const std::filesystem::path& file, const Model& model)
    : SessionFile(file, model, traits_of(model, nullptr), std::numeric_limits<int>::max()) {}

SessionFile::SessionFile(const std::filesystem::path& file, const Model& model,
                         std::vector<SessionTrait> traits, std::size_t most_tokens)
    : file_(file), model_(model), traits_(std::move(traits)), most_tokens_(most_tokens) {
  const std::string name = typed(file.string());
  if (is_there(file)) require_file(file);
  writing(name, [&] {
    part_ = std::filesystem::weakly_canonical(file);
    std::filesystem::path lock = part_;
    lock += ".lock";
    part_ += ".part";
    lock_ = platform::FileLock::try_hold(lock);
    // Left over from a program that ended while it was writing.
    if (lock_ != nullptr) std::filesystem::remove(part_);
  });
  if (lock_ == nullptr)
    throw Error("{} is in use by another program; end that one, or choose another file", name);
}

std::optional<SessionReader> SessionFile::read() const {
  if (!is_there(file_)) return {};
  return SessionReader(file_, traits_, model_.config().vocab_size, most_tokens_);
}

SessionWriter SessionFile::write(const Session& session) const {
  return {file_, part_, traits_, session};
}

}  // namespace staircase
