// A conversation in a file: all that its next answer depends on, keys and values included. A program that
// reads it continues as if it had never ended. A server keeps its texts in the same way.
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

/// What the next answer of a chat depends on besides keys and values, or the texts that a server keeps.
struct Session {
  std::vector<Message> messages = {};  ///< the whole conversation
  std::vector<Message> dropped = {};   ///< the oldest of them, which the model does not see any more
  std::deque<KnownTokens::KnownText> known = {};  ///< texts that must keep their tokens
  std::vector<int> tokens = {};                   ///< of the newest text
  std::vector<int> firsts = {};  ///< of a server's known texts: the first position that the file has of each
  int cached = 0;                ///< the first of them, whose keys and values follow in the file
  int held = 0;       ///< the most that the cache has held since it was empty: rings lack the oldest of these
  unsigned seed = 0;  ///< with which the random numbers began
  std::mt19937 generator = {};  ///< those that come next
};

/// What the keys and values depend on besides the tokens, and the tokens besides the messages.
struct SessionTrait {
  std::string name, value;
};

/// Precedes each part of a file. The first part holds the traits, the second one the session. The keys and
/// the values of each layer follow, and an empty part at the end.
struct SessionPart {
  std::uint64_t size;      ///< in bytes; zeros follow up to a multiple of 16
  std::uint64_t checksum;  ///< XXH64 of bytes and zeros; its seed is the size + the number of the part · 2^40
};

/// The parts of a file from one on.
class SessionParts {
 public:
  /// From the first part on. `name` is for messages.
  SessionParts(std::span<const std::byte> file, std::string name);

  /// What is read next. Throws Error unless the part ends in the file.
  SessionPart header() const;

  /// The bytes of the next part with its zeros, unchecked.
  std::span<const std::byte> skip();

  /// The bytes of the next part. Throws Error if they were changed.
  std::span<const std::byte> next();

  /// Goes to the end, which must be that of the file, too. Throws Error if a part was changed.
  void check();

 private:
  std::span<const std::byte> file_;
  std::string name_;
  std::size_t at_;
  std::uint64_t number_ = 0;
};

/// Reads a session, in the order in which it was written. All that is wrong with the file throws Error with
/// one sentence.
class SessionReader {
 public:
  const Session& session() const { return session_; }

  /// The keys and values of the next layer, for the first session().cached positions of a row of a cache:
  /// [1, n_kv_head, capacity, size] each, or a ring of blocks. The cache must not be used before the last
  /// layer is there: the checksums are computed meanwhile, on another thread.
  void get(Device& device, const KeysValues& layer);

  /// The same for the first `positions` of them.
  void get(Device& device, const KeysValues& layer, int positions);

 private:
  friend class SessionFile;
  SessionReader(const std::filesystem::path& file, const std::vector<SessionTrait>& traits, int vocabulary,
                std::size_t most_tokens);

  [[noreturn]] void refuse() const;

  std::string name_;
  MappedFile file_;
  SessionParts parts_;
  std::future<void> checked_;  // throws what is wrong with any part
  Tensor memory_;              // of a tensor, on the device
  Session session_;
};

/// Writes a session. The file is what it was before until `finish` has returned.
class SessionWriter {
 public:
  /// Appends the first session.cached positions of a row of a cache: [1, n_kv_head, capacity, size] each. Of
  /// a ring of blocks, [blocks, n_kv_head, block size, size] each, appends those of them that are still
  /// there.
  void put(Device& device, const KeysValues& layer);

  /// The same for the first `positions` of them.
  void put(Device& device, const KeysValues& layer, int positions);

  /// Throws Error if that fails.
  void finish();

 private:
  friend class SessionFile;
  SessionWriter(const std::filesystem::path& file, const std::filesystem::path& part,
                const std::vector<SessionTrait>& traits, const Session& session);

  /// `padded` has room for the zeros.
  void put(std::span<std::byte> padded, std::size_t size);
  void put(std::string bytes);

  std::string name_;
  int cached_, held_;
  std::optional<platform::Replacement> out_;
  std::uint64_t number_ = 0;
  Tensor memory_;                  // of a tensor, on the device
  std::vector<std::byte> buffer_;  // of a tensor, on the host
};

/// A session's file, which no other program can use at the same time.
class SessionFile {
 public:
  /// The file need not be there yet. Throws Error if another program uses it, and if it could not be written.
  SessionFile(const std::filesystem::path& file, const Model& model, const ChatTemplate& chat_template);

  /// Of a server, whose session is that of many texts: together they may be longer than the context.
  SessionFile(const std::filesystem::path& file, const Model& model);

  /// Nothing if there is no file. Throws Error for one that is no session, is damaged, belongs to another
  /// model, template or type, or has more tokens than the model's context.
  std::optional<SessionReader> read() const;

  /// Begins to write the session: keys and values follow. Throws Error if that is impossible.
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
