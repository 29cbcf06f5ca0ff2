// The operating system: memory, files, processors and terminals differ between Linux, macOS and Windows in
// platform.cpp. (Signals and the watch over other processes are Unix's: common/parallel and common/server.)
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

/// Bytes of memory that this machine has, SIZE_MAX if that is unknown; some systems reserve more than that
/// without a word.
std::size_t memory_size();

/// At least `bytes` of memory: huge pages if it fills one, otherwise whole cache lines. Throws
/// std::bad_alloc.
std::shared_ptr<void> allocate(std::size_t bytes);

/// Memory for many pieces of a long life, such as the weights of a model. They lie one after another, so
/// small ones share huge pages: with 4 KiB pages, looking up the addresses of a matrix of 1 MB can take
/// longer than multiplying it. A block of them is freed with the last of its pieces. Not thread-safe.
class Arena {
 public:
  /// At least `bytes` of memory from the start of a cache line on. Throws std::bad_alloc.
  std::shared_ptr<void> allocate(std::size_t bytes);

 private:
  std::weak_ptr<void> block_;
  std::size_t size_ = 0, used_ = 0;  // bytes of the block
};

/// Requests the registers of AMX: Linux grants them to a process only then, since they slow down every switch
/// between threads. Returns false if they are unavailable.
bool request_amx();

/// A file's bytes, which the system reads on access; empty for an empty file. Throws std::system_error. Bytes
/// that cannot be read later, since the file became shorter or the disk fails, end the process: it writes
/// `last_words` to standard error and exits with status 1. (Windows does not shorten a file that is mapped.)
std::span<const std::byte> map_file(const std::filesystem::path& file, std::string last_words);

/// Ends a mapping.
void unmap_file(std::span<const std::byte> mapping) noexcept;

/// Lets the memory of a part of a mapping be reused: a later access waits for the file.
void release(std::span<const std::byte> part) noexcept;

/// Of that part of a mapping only what `will_need` names is going to be read: the system does not read on
/// from there.
void read_parts_only(std::span<const std::byte> mapping) noexcept;

/// The system may read that part of a mapping now, and nothing is waited for.
void will_need(std::span<const std::byte> part) noexcept;

/// Writes a file that is complete or, after a failure, what it was before: the bytes go into a file beside
/// it, to the disk, and then under its name. A link stays a link. All of it throws std::system_error.
class Replacement {
 public:
  /// Creates `part`, in the folder of `file`, which must not be there yet.
  Replacement(const std::filesystem::path& file, std::filesystem::path part);
  /// Removes `part`, unless it has become the file.
  ~Replacement();
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void write(std::span<const std::byte> bytes);

  /// Puts what was written in the place of the file.
  void finish();

 private:
  std::filesystem::path target_, part_;
  std::FILE* out_;
};

/// The same for bytes that are in memory.
void replace_file(const std::filesystem::path& file, std::string_view bytes);

/// The lock of a file, which only one process at a time can hold. A process that ends in any way releases it.
class FileLock {
 public:
  /// Creates `file`, which must serve no other purpose, if it is missing. Returns nullptr if another process,
  /// or another object, holds its lock. Throws std::system_error.
  static std::unique_ptr<FileLock> try_hold(const std::filesystem::path& file);
  /// Removes the file.
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  FileLock(std::filesystem::path file, std::intptr_t handle) : file_(std::move(file)), handle_(handle) {}

  std::filesystem::path file_;
  std::intptr_t handle_;
};

/// Where the running program lies; empty if that is unknown.
std::filesystem::path program();

/// Reserves the descriptors 0, 1 and 2: if a standard stream is closed, a file opened later would take its
/// number, and with it the stream's data. Reading or writing there fails as before. For the start of a
/// program.
void reserve_standard_streams() noexcept;

/// Sets a variable of the environment for this process. For the start of a program.
void set_environment(const char* name, const std::string& value);

/// Local date and time of day.
std::tm local_time();

/// Whether the stream is a terminal.
bool is_terminal(std::FILE* stream);

/// The next bytes of standard input, unchanged: returns how many, 0 at its end. Throws std::system_error.
std::size_t read_standard_input(std::span<char> buffer);

}  // namespace staircase::platform
