// The operating system: all that is not the same on Linux, macOS and Windows stands in platform.cpp, and
// nowhere else.
#pragma once

#include <cstddef>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace staircase::platform {

/// How many processors this process may run on: taskset and containers restrict them.
int processors();

/// At least `bytes` of memory: huge pages where there is enough for one, whole cache lines otherwise. Throws
/// std::bad_alloc.
std::shared_ptr<void> allocate(std::size_t bytes);

/// Asks for the registers of AMX: Linux gives them to a process only then, since they make every switch
/// between threads longer. False where they are not to be had.
bool request_matrix_registers();

/// A file's bytes, which the system reads when they are looked at; empty for an empty file. Throws
/// std::system_error.
std::span<const std::byte> map_file(const std::filesystem::path& file);

/// Ends a mapping.
void unmap_file(std::span<const std::byte> mapping) noexcept;

/// The memory of a part of a mapping may be used for something else: who looks there again waits for the
/// file.
void release(std::span<const std::byte> part) noexcept;

/// Of that part of a mapping only what `will_need` names is going to be read: the system does not read on
/// from there.
void read_parts_only(std::span<const std::byte> mapping) noexcept;

/// The system may read that part of a mapping now, and nothing is waited for.
void will_need(std::span<const std::byte> part) noexcept;

/// Where the running program lies; empty if that is unknown.
std::filesystem::path program();

/// Keeps 0, 1 and 2 from the files that are opened later: where a standard stream is closed, a file would
/// take its number and with it what is meant for the stream. To read or write there fails as before. For the
/// start of a program.
void reserve_standard_streams() noexcept;

/// Sets a variable of the environment for this process. For the start of a program.
void set_environment(const char* name, const std::string& value);

/// Date and time of day at this place.
std::tm local_time();

/// Whether a person sees what is written there.
bool is_terminal(std::FILE* stream);

/// The next bytes of standard input, as they are: how many there were, 0 at its end. Throws
/// std::system_error.
std::size_t read_standard_input(std::span<char> buffer);

}  // namespace staircase::platform
