// A conversation in a file: everything that its next answer depends on, including keys and values. A program
// that reads the file continues as if it had never ended. A server stores its texts in the same way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/decoding/known_tokens.h"
#include "common/model/model.h"
#include "common/model/stored_tensor.h"
#include "common/text/chat_template.h"
#include "kernels/platform.h"

namespace staircase {

/// Everything except keys and values that the next answer of a chat depends on; for a server, the texts that
/// it keeps.
struct Session {
  std::vector<Message> messages = {};             ///< the whole conversation
  std::vector<Message> dropped = {};              ///< the oldest of them, which the model no longer sees
  std::deque<KnownTokens::KnownText> known = {};  ///< texts that must keep their tokens
  std::vector<int> tokens = {};                   ///< of the newest text, or of a server's known texts
  std::vector<int> firsts = {};  ///< for each known text of a server, its first position in the file
  int cached = 0;                ///< number of the first tokens, whose keys and values follow
  int held = 0;                  ///< most positions in the cache since it was empty: rings lack the oldest
  unsigned seed = 0;             ///< the seed of the random numbers
  std::mt19937 generator = {};   ///< produces the next random numbers
};

/// Something else that the session depends on, such as the model or a data type.
struct SessionTrait {
  std::string name, value;
};

/// The header of each part of a file. The first part holds the traits and the second part the session. The
/// keys and the values of each layer follow, one part each. An empty part ends the file.
struct SessionPart {
  std::uint64_t size;      ///< in bytes; zeros follow up to a multiple of 16
  std::uint64_t checksum;  ///< XXH64 of the bytes and zeros; the seed is size + part number · 2^40
};

/// Reads the parts of a file one by one.
class SessionParts {
 public:
  /// Begins with the first part. `name` is for messages.
  SessionParts(std::span<const std::byte> file, std::string name);

  /// The header of the next part. Throws Error unless the part ends inside the file.
  SessionPart header() const;

  /// The bytes of the next part with its zeros, unchecked.
  std::span<const std::byte> skip();

  /// The bytes of the next part. Throws Error if they were changed.
  std::span<const std::byte> next();

  /// Checks all remaining parts. Throws Error if a part was changed, or if the file continues after the last
  /// part.
  void check();

 private:
  std::span<const std::byte> file_;
  std::string name_;
  std::size_t at_;
  std::uint64_t number_ = 0;
};

/// Reads a session in the order in which it was written. Any fault in the file throws Error with one
/// sentence.
class SessionReader {
 public:
  const Session& session() const { return session_; }

  /// Reads the keys and values of the next layer into the first session().cached positions of a row of a
  /// cache: [1, n_kv_head, capacity, size] each, or a ring of blocks. Another thread computes the checksums
  /// meanwhile, so the cache must not be used before the last layer has been read.
  void get(Device& device, const KeysValues& layer);

  /// Reads only the first `positions` positions of the next layer.
  void get(Device& device, const KeysValues& layer, int positions);

 private:
  friend class SessionFile;
  SessionReader(const std::filesystem::path& file, const std::vector<SessionTrait>& traits, int vocabulary,
                std::size_t most_tokens);

  [[noreturn]] void refuse() const;

  std::string name_;
  MappedFile file_;
  SessionParts parts_;
  std::future<void> checked_;  // throws if any part is wrong
  Tensor memory_;              // for one tensor, on the device
  Session session_;
};

/// Writes a session. The old file remains until `finish` has returned.
class SessionWriter {
 public:
  /// Appends the next layer's keys and values at the first session.cached positions of a row of a cache: [1,
  /// n_kv_head, capacity, size] each. From a ring of blocks, [blocks, n_kv_head, block size, size] each,
  /// appends only the positions that it still holds.
  void put(Device& device, const KeysValues& layer);

  /// Appends only the first `positions` positions of the next layer.
  void put(Device& device, const KeysValues& layer, int positions);

  /// Completes the file and replaces the old one. Throws Error if that fails.
  void finish();

 private:
  friend class SessionFile;
  SessionWriter(const std::filesystem::path& file, const std::filesystem::path& part,
                const std::vector<SessionTrait>& traits, const Session& session);

  /// Writes a part of `size` bytes. `padded` also has room for the zeros.
  void put(std::span<std::byte> padded, std::size_t size);
  void put(std::string bytes);

  std::string name_;
  int cached_, held_;
  std::optional<platform::Replacement> out_;
  std::uint64_t number_ = 0;
  Tensor memory_;                  // for one tensor, on the device
  std::vector<std::byte> buffer_;  // for one tensor, on the host
};

/// The file of a session. No other program can use it at the same time.
class SessionFile {
 public:
  /// Opens the file of a chat, which need not exist yet. Throws Error if another program uses the file, or if
  /// it could not be written.
  SessionFile(const std::filesystem::path& file, const Model& model, const ChatTemplate& chat_template);

  /// Opens the file of a server. Its session holds many texts, which together may be longer than the context.
  SessionFile(const std::filesystem::path& file, const Model& model);

  /// Reads the session; nothing if there is no file. Throws Error for a file that is not a session, is
  /// damaged, belongs to another model, template or data type, or has more tokens than the model's context.
  std::optional<SessionReader> read() const;

  /// Begins to write the session; the caller then adds keys and values. Throws Error if the file cannot be
  /// written.
  SessionWriter write(const Session& session) const;

 private:
  SessionFile(const std::filesystem::path& file, const Model& model, std::vector<SessionTrait> traits,
              std::size_t most_tokens);

  std::filesystem::path file_, part_;
  const Model& model_;
  std::vector<SessionTrait> traits_;
  std::size_t most_tokens_;
  std::unique_ptr<platform::FileLock> lock_;
};

}  // namespace staircase
