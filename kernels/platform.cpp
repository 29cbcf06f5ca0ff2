#include "kernels/platform.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <random>
#include <system_error>
#include <thread>
#include <utility>

#ifdef _WIN32
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <io.h>
#include <malloc.h>
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#endif
#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

namespace staircase::platform {
namespace {

constexpr std::size_t kCacheLine = 64;
#ifdef __EMSCRIPTEN__
// WebAssembly has no page lookups, and aligning matrices to 2 MiB would waste up to 2 MiB between two of
// them.
constexpr std::size_t kHugePage = SIZE_MAX;
#else
constexpr std::size_t kHugePage = std::size_t{2} << 20;
#endif

/// Pieces from kLeastShared to kMostShared bytes share a block, which gives them huge pages. Smaller pieces
/// have few 4 KiB pages, which are looked up quickly. With AddressSanitizer no piece shares a block: it can
/// only detect an access outside of a piece that has its own memory.
constexpr std::size_t kLeastShared = std::size_t{128} << 10;
#if defined(MADV_HUGEPAGE) && !defined(__EMSCRIPTEN__) && !defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kMostShared = std::size_t{32} << 20;
#else
constexpr std::size_t kMostShared = 0;
#endif

}  // namespace

int processors() {
#ifdef __linux__
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return CPU_COUNT(&allowed);
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::size_t memory_size() {
#ifdef _WIN32
  MEMORYSTATUSEX status;
  status.dwLength = sizeof status;
  return GlobalMemoryStatusEx(&status) != 0 ? static_cast<std::size_t>(status.ullTotalPhys) : SIZE_MAX;
#else
  const long pages = sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE))
                   : SIZE_MAX;
#endif
}

std::shared_ptr<void> allocate(std::size_t bytes) {
  // A product reads its weights once from end to end, and looking up 4 KiB pages would cost much of the
  // memory bandwidth.
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  bytes = std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
#ifdef _WIN32
  void* const memory = _aligned_malloc(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, _aligned_free};
#else
  void* const memory = std::aligned_alloc(alignment, bytes);
  if (memory == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  if (alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return {memory, std::free};
#endif
}

std::shared_ptr<void> Arena::allocate(std::size_t bytes) {
  bytes = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  if (bytes < kLeastShared || bytes > kMostShared) return platform::allocate(bytes);
  std::shared_ptr<void> block = block_.lock();
  if (block == nullptr || bytes > size_ - used_) {
    // Each block is twice as large as the last, so a small model takes little memory.
    size_ = std::min(kMostShared, std::max({kHugePage, 2 * size_, 2 * bytes}));
    block = platform::allocate(size_);
    block_ = block;
    used_ = 0;
  }
  const auto piece = std::shared_ptr<void>(block, static_cast<std::byte*>(block.get()) + used_);
  used_ += bytes;
  return piece;
}

bool request_amx() {
#if defined(__linux__) && defined(__x86_64__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#ifdef _WIN32

std::span<const std::byte> map_file(const std::filesystem::path& file, std::string) {
  const std::uintmax_t bytes = std::filesystem::file_size(file);
  if (bytes == 0) return {};  // Windows refuses an empty mapping
  const auto check = [](bool good) {
    if (!good) throw std::system_error(static_cast<int>(GetLastError()), std::system_category());
  };
  struct Handle {
    HANDLE handle;
    ~Handle() {
      if (handle != nullptr && handle != INVALID_HANDLE_VALUE) CloseHandle(handle);
    }
  };
  const Handle opened{CreateFileW(file.c_str(), GENERIC_READ, FILE_SHARE_READ, nullptr, OPEN_EXISTING,
                                  FILE_ATTRIBUTE_NORMAL, nullptr)};
  check(opened.handle != INVALID_HANDLE_VALUE);
  const Handle mapping{CreateFileMappingW(opened.handle, nullptr, PAGE_READONLY, 0, 0, nullptr)};
  check(mapping.handle != nullptr);
  const void* const start = MapViewOfFile(mapping.handle, FILE_MAP_READ, 0, 0, 0);
  check(start != nullptr);  // the view outlives both handles
  return {static_cast<const std::byte*>(start), static_cast<std::size_t>(bytes)};
}

void unmap_file(std::span<const std::byte> mapping) noexcept {
  if (!mapping.empty()) UnmapViewOfFile(mapping.data());
}

void release(std::span<const std::byte>) noexcept {}
void read_parts_only(std::span<const std::byte>) noexcept {}
void will_need(std::span<const std::byte>) noexcept {}

std::filesystem::path program() {
  wchar_t name[32768];
  const DWORD length = GetModuleFileNameW(nullptr, name, static_cast<DWORD>(std::size(name)));
  return length < std::size(name) ? std::filesystem::path(name, name + length) : std::filesystem::path();
}

void reserve_standard_streams() noexcept {}

void set_environment(const char* name, const std::string& value) {
  _putenv_s(name, value.c_str());
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm here{};
  localtime_s(&here, &now);
  return here;
}

static int sync(int descriptor) {
  return _commit(descriptor);
}

std::unique_ptr<FileLock> FileLock::try_hold(const std::filesystem::path& file) {
  const HANDLE handle = CreateFileW(file.wstring().c_str(), GENERIC_READ | GENERIC_WRITE, 0, nullptr,
                                    OPEN_ALWAYS, FILE_FLAG_DELETE_ON_CLOSE, nullptr);
  if (handle != INVALID_HANDLE_VALUE)
    return std::unique_ptr<FileLock>(new FileLock(file, reinterpret_cast<std::intptr_t>(handle)));
  const DWORD fault = GetLastError();
  if (fault == ERROR_SHARING_VIOLATION) return nullptr;
  throw std::system_error(static_cast<int>(fault), std::system_category());
}

FileLock::~FileLock() {
  CloseHandle(reinterpret_cast<HANDLE>(handle_));
}

bool is_terminal(std::FILE* stream) {
  return _isatty(_fileno(stream)) != 0;
}

std::size_t read_standard_input(std::span<char> buffer) {
  const int count = _read(0, buffer.data(), static_cast<unsigned>(buffer.size()));
  if (count < 0) throw std::system_error(errno, std::generic_category());
  return static_cast<std::size_t>(count);
}

#else

namespace {

/// A mapped file. The handler of SIGBUS reads these and can neither lock nor allocate, so an entry is never
/// freed, only reused.
struct Mapped {
  std::atomic<const std::byte*> begin = nullptr;  // nullptr while the entry is unused
  std::size_t bytes = 0;
  std::string last_words;
  Mapped* next = nullptr;
};

std::atomic<Mapped*> mapped_files = nullptr;
std::mutex mapped_files_change;
struct sigaction previous_action;

/// Ends the process with the file's last words if the system could not read a page of a mapping. For any
/// other bus error it restores the previous action.
void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto* const address = static_cast<const std::byte*>(info->si_addr);
  for (const Mapped* file = mapped_files; file != nullptr; file = file->next) {
    const std::byte* const begin = file->begin;
    if (begin == nullptr || address < begin || address >= begin + file->bytes) continue;
    static std::atomic_flag is_ending;
    while (is_ending.test_and_set()) pause();  // another thread is about to end the process
    [[maybe_unused]] const ssize_t written =
        write(STDERR_FILENO, file->last_words.data(), file->last_words.size());
    _exit(1);
  }
  sigaction(SIGBUS, &previous_action, nullptr);
  raise(signal);  // arrives when this handler returns
}

void remember(std::span<const std::byte> bytes, std::string last_words) {
  const std::lock_guard lock(mapped_files_change);
  static const int installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &action, &previous_action);
  }();
  static_cast<void>(installed);
  Mapped* file = mapped_files;
  while (file != nullptr && file->begin != nullptr) file = file->next;
  const bool is_new = file == nullptr;
  if (is_new) file = new Mapped;
  file->bytes = bytes.size();
  file->last_words = std::move(last_words);
  if (is_new) {
    file->next = mapped_files;
    mapped_files = file;
  }
  file->begin = bytes.data();
}

void forget(std::span<const std::byte> bytes) {
  const std::lock_guard lock(mapped_files_change);
  for (Mapped* file = mapped_files; file != nullptr; file = file->next) {
    if (file->begin == bytes.data()) file->begin = nullptr;
  }
}

}  // namespace

std::span<const std::byte> map_file(const std::filesystem::path& file, std::string last_words) {
  const auto check = [](bool good) {
    if (!good) throw std::system_error(errno, std::generic_category());
  };
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) close(number);
    }
  };
  const Descriptor opened{open(file.c_str(), O_RDONLY | O_CLOEXEC)};
  check(opened.number >= 0);
  struct stat status {};
  check(fstat(opened.number, &status) == 0);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0) return {};  // mmap refuses an empty range
  const void* const start = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, opened.number, 0);
  check(start != MAP_FAILED);  // the mapping outlives the descriptor
  const std::span mapped(static_cast<const std::byte*>(start), bytes);
  remember(mapped, std::move(last_words));
  return mapped;
}

void unmap_file(std::span<const std::byte> mapping) noexcept {
  if (mapping.empty()) return;
  forget(mapping);
  munmap(const_cast<std::byte*>(mapping.data()), mapping.size());
}

/// Gives the system this advice for all pages that the part touches.
void advise(std::span<const std::byte> part, int advice) noexcept {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(part.data()), start = first / page * page;
  madvise(reinterpret_cast<void*>(start), first + part.size() - start, advice);
}

void release(std::span<const std::byte> part) noexcept {
  advise(part, MADV_DONTNEED);
}

void read_parts_only(std::span<const std::byte> mapping) noexcept {
  advise(mapping, MADV_RANDOM);
}

void will_need(std::span<const std::byte> part) noexcept {
  advise(part, MADV_WILLNEED);
}

std::filesystem::path program() {
#ifdef __APPLE__
  char name[4096];
  std::uint32_t size = sizeof name;
  return _NSGetExecutablePath(name, &size) == 0 ? std::filesystem::path(name) : std::filesystem::path();
#else
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown);
#endif
}

void reserve_standard_streams() noexcept {
  for (int stream = 0; stream < 3; ++stream) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // open() returns the lowest free number, which is this stream's. The file is opened in the wrong
    // direction, so using the stream still fails and no data is lost unnoticed.
    open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void set_environment(const char* name, const std::string& value) {
  setenv(name, value.c_str(), 1);
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm here{};
  localtime_r(&now, &here);
  return here;
}

static int sync(int descriptor) {
  return fsync(descriptor);
}

std::unique_ptr<FileLock> FileLock::try_hold(const std::filesystem::path& file) {
  while (true) {
    const int descriptor = open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) throw std::system_error(errno, std::generic_category());
    std::unique_ptr<FileLock> held(new FileLock(file, descriptor));
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      held->file_.clear();  // the file is not ours to remove
      if (errno == EWOULDBLOCK) return nullptr;
      throw std::system_error(errno, std::generic_category());
    }
    // The previous holder may have removed the file meanwhile. Then other processes cannot find the file that
    // we locked.
    struct stat own, named;
    if (fstat(descriptor, &own) == 0 && stat(file.c_str(), &named) == 0 && own.st_ino == named.st_ino &&
        own.st_dev == named.st_dev)
      return held;
    held->file_.clear();
  }
}

FileLock::~FileLock() {
  if (!file_.empty()) unlink(file_.c_str());
  close(static_cast<int>(handle_));
}

bool is_terminal(std::FILE* stream) {
  return isatty(fileno(stream)) != 0;
}

std::size_t read_standard_input(std::span<char> buffer) {
  while (true) {
    const ssize_t count = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR) throw std::system_error(errno, std::generic_category());
  }
}

#endif

namespace {

void check(bool good) {
  if (!good) throw std::system_error(errno, std::generic_category());
}

}  // namespace

Replacement::Replacement(const std::filesystem::path& file, std::filesystem::path part)
    : target_(std::filesystem::weakly_canonical(file)),
      part_(std::move(part)),
      out_(std::fopen(part_.string().c_str(), "wbx")) {
  check(out_ != nullptr);
}

Replacement::~Replacement() {
  if (out_ != nullptr) std::fclose(out_);
  std::error_code ignored;
  if (!part_.empty()) std::filesystem::remove(part_, ignored);
}

void Replacement::write(std::span<const std::byte> bytes) {
  check(std::fwrite(bytes.data(), 1, bytes.size(), out_) == bytes.size());
}

void Replacement::finish() {
  check(std::fflush(out_) == 0 && sync(fileno(out_)) == 0);
  check(std::fclose(std::exchange(out_, nullptr)) == 0);
  std::error_code is_new;
  const auto status = std::filesystem::status(target_, is_new);
  if (std::filesystem::exists(status)) std::filesystem::permissions(part_, status.permissions());
  std::filesystem::rename(part_, target_);
  part_.clear();
}

void replace_file(const std::filesystem::path& file, std::string_view bytes) {
  std::filesystem::path part = std::filesystem::weakly_canonical(file);
  for (const std::string& piece :
       {std::string("."), std::to_string(std::random_device()()), std::string(".part")})
    part += piece;
  Replacement replacement(file, part);
  replacement.write(std::as_bytes(std::span(bytes.data(), bytes.size())));
  replacement.finish();
}

}  // namespace staircase::platform
