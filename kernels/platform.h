// The operating system: memory, files, processors and terminals. platform.cpp implements them for Linux,
// macOS and Windows. (Code for Unix only, which handles signals and watches processes, is in common/parallel
// and common/server.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace staircase::platform {

/// How many processors this process may run on: taskset and containers restrict them.
int processors();

/// Bytes of memory in this machine, or SIZE_MAX if unknown. Some systems silently let a program reserve more.
std::size_t memory_size();

/// Allocates at least `bytes` of memory: whole huge pages if that fills one, otherwise whole cache lines.
/// Throws std::bad_alloc.
std::shared_ptr<void> allocate(std::size_t bytes);

/// Allocates many long-lived pieces, such as the weights of a model, one after another in blocks, so small
/// pieces share huge pages. With 4 KiB pages, looking up the addresses of a matrix of 1 MB can take longer
/// than multiplying it. A block is freed with its last piece. Not thread-safe.
class Arena {
 public:
  /// Allocates at least `bytes` of memory, aligned to a cache line. Throws std::bad_alloc.
  std::shared_ptr<void> allocate(std::size_t bytes);

 private:
  std::weak_ptr<void> block_;
  std::size_t size_ = 0, used_ = 0;  // bytes of the block
};

/// Requests the AMX registers. Linux grants them only on request, because they slow down every switch between
/// threads. Returns false if they are unavailable.
bool request_amx();

/// Maps a file: returns its bytes, which the system reads on access; empty for an empty file. Throws
/// std::system_error. If bytes cannot be read later, because the file became shorter or the disk failed, the
/// process writes `last_words` to standard error and exits with status 1. (Windows does not shorten a mapped
/// file.)
std::span<const std::byte> map_file(const std::filesystem::path& file, std::string last_words);

/// Ends a mapping.
void unmap_file(std::span<const std::byte> mapping) noexcept;

/// Lets the system reuse the memory of this part of a mapping: a later access reads the file again.
void release(std::span<const std::byte> part) noexcept;

/// Declares that only the parts named with `will_need` will be read in this mapping, so the system does not
/// read ahead.
void read_parts_only(std::span<const std::byte> mapping) noexcept;

/// Lets the system start reading this part of a mapping. Returns without waiting.
void will_need(std::span<const std::byte> part) noexcept;

/// Replaces a file completely or, after a failure, not at all: it writes the bytes to a temporary file,
/// flushes that to the disk, and renames it to `file`. A symbolic link stays a link. Every member throws
/// std::system_error.
class Replacement {
 public:
  /// Creates the temporary file `part`, which must not exist yet and must be in the folder of `file`.
  Replacement(const std::filesystem::path& file, std::filesystem::path part);
  /// Removes `part`, unless finish() has renamed it to `file`.
  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void write(std::span<const std::byte> bytes);

  /// Replaces the file by the bytes written.
  void finish();

 private:
  std::filesystem::path target_, part_;
  std::FILE* out_;
};

/// Replaces a file by these bytes, completely or not at all (see Replacement). Throws std::system_error.
void replace_file(const std::filesystem::path& file, std::string_view bytes);

/// A lock on a file, which only one process at a time can hold. The system releases it when the process ends,
/// however it ends.
class FileLock {
 public:
  /// Creates `file`, which must serve no other purpose, if it is missing, and locks it. Returns nullptr if
  /// another process, or another object, holds the lock. Throws std::system_error.
  static std::unique_ptr<FileLock> try_hold(const std::filesystem::path& file);
  /// Removes the file and releases the lock.
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  FileLock(std::filesystem::path file, std::intptr_t handle) : file_(std::move(file)), handle_(handle) {}

  std::filesystem::path file_;
  std::intptr_t handle_;
};

/// The path of the running program; empty if unknown.
std::filesystem::path program();

/// Call at the start of a program. Reserves the descriptors 0, 1 and 2: if a standard stream is closed, a
/// file opened later would otherwise get its number, and with it the stream's data. Using the closed stream
/// still fails.
void reserve_standard_streams() noexcept;

/// Sets an environment variable for this process. Call it at the start of a program.
void set_environment(const char* name, const std::string& value);

/// Returns the local date and time.
std::tm local_time();

/// Whether the stream is a terminal.
bool is_terminal(std::FILE* stream);

/// Reads the next bytes of standard input, unchanged, into `buffer`. Returns how many, 0 at the end. Throws
/// std::system_error.
std::size_t read_standard_input(std::span<char> buffer);

}  // namespace staircase::platform
