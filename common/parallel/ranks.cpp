#include "common/parallel/ranks.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "common/base/error.h"

namespace staircase {
namespace {

/// all_reduce sums in slices from this many numbers on. They are 64 KiB, which a link of 10 Gbit/s transfers
/// in about the time that it needs to start another call: 50 µs.
constexpr std::size_t kSlicedFrom = 1 << 14;

/// The number in the first of these variables that is set, or `otherwise` if none is.
int number_in_environment(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    if (const char* text = std::getenv(name)) return std::atoi(text);
  }
  return otherwise;
}

}  // namespace

void Ranks::gather(std::span<const std::byte> own, std::span<std::byte> all) {
  exchange(own, all);
  received_bytes_ += own.size() * static_cast<std::size_t>(size_ - 1);
}

void Ranks::all_gather(std::span<const float> own, std::span<float> all) {
  gather(std::as_bytes(own), std::as_writable_bytes(all));
}

void Ranks::all_reduce(std::span<float> numbers) {
  if (size_ > 2 && numbers.size() >= kSlicedFrom) return reduce_slices(numbers);
  gathered_.resize(numbers.size() * static_cast<std::size_t>(size_));
  all_gather(numbers, gathered_);
  std::copy_n(gathered_.begin(), numbers.size(), numbers.begin());
  for (std::size_t first = numbers.size(); first < gathered_.size(); first += numbers.size()) {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] += gathered_[first + i];
  }
}

void Ranks::reduce_slices(std::span<float> numbers) {
  const std::size_t count =
      (numbers.size() + static_cast<std::size_t>(size_) - 1) / static_cast<std::size_t>(size_);
  // The last slices may be shorter.
  const auto slice = [&](int rank) {
    const std::size_t first = std::min(static_cast<std::size_t>(rank) * count, numbers.size());
    return numbers.subspan(first, std::min(count, numbers.size() - first));
  };
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) send(slice(rank), rank);
  }
  const std::span<float> own = slice(rank_);
  std::vector<float> sums(count), part(own.size());
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) receive(part, rank);
    const std::span<const float> added = rank == rank_ ? own : std::span<float>(part);
    for (std::size_t i = 0; i < added.size(); ++i) sums[i] = rank == 0 ? added[i] : sums[i] + added[i];
  }
  gathered_.resize(count * static_cast<std::size_t>(size_));
  all_gather(sums, gathered_);
  std::copy_n(gathered_.begin(), numbers.size(), numbers.begin());
}

std::string Ranks::broadcast(const std::string& text) {
  const std::uint64_t size = text.size();
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(size_));
  gather(std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)));
  std::string own = text;
  own.resize(sizes[0]);
  std::string all(sizes[0] * sizes.size(), '\0');
  gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  return all.substr(0, sizes[0]);
}

std::optional<int> Ranks::first_mismatch(std::uint64_t number) {
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(size_));
  gather(std::as_bytes(std::span(&number, 1)), std::as_writable_bytes(std::span(numbers)));
  const auto other = std::ranges::find_if(numbers, [&](std::uint64_t one) { return one != numbers[0]; });
  if (other == numbers.end()) return {};
  return static_cast<int>(other - numbers.begin());
}

void Ranks::check_other(int rank) const {
  if (rank < 0 || rank >= size_ || rank == rank_) {
    throw Error("rank {} of {} cannot exchange data with rank {}: no such peer", rank_, size_, rank);
  }
}

void Ranks::send(std::span<const float> numbers, int to) {
  check_other(to);
  post(std::as_bytes(numbers), to);
}

void Ranks::receive(std::span<float> numbers, int from) {
  check_other(from);
  const std::size_t sent = take(std::as_writable_bytes(numbers), from);
  if (sent != numbers.size_bytes()) {
    throw Error("rank {} expects {} bytes from rank {}, which sent {}: all ranks need the same options",
                rank_, numbers.size_bytes(), from, sent);
  }
  received_bytes_ += sent;
}

void Ranks::barrier() {
  first_mismatch(0);
}

void SingleRank::exchange(std::span<const std::byte> own, std::span<std::byte> all) {
  std::ranges::copy(own, all.begin());
}

int launched_size() {
  return number_in_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1);
}

int launched_rank() {
  return number_in_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0);
}

int launched_local_rank() {
  return number_in_environment({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, 0);
}

}  // namespace staircase
