// One model computed by several ranks: processes, or threads, that run the same program, each with a share of
// the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace staircase {

/// One rank's link to all of them. Every rank makes the same calls in the same order, and each call waits for
/// all ranks.
class Ranks {
 public:
  virtual ~Ranks() = default;

  /// From 0 to size() - 1.
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// all = the numbers of rank 0, then those of rank 1 ... Every rank has as many.
  void all_gather(std::span<const float> own, std::span<float> all);

  /// Each number becomes its sum over all ranks, added in the order of the ranks: every rank gets the same
  /// bits, in every run.
  void all_reduce(std::span<float> numbers);

  /// The text of rank 0.
  std::string broadcast(const std::string& text);

  /// The first rank whose number is not that of rank 0, if there is one.
  std::optional<int> first_other(std::uint64_t number);

  /// What this rank has received from the others.
  std::size_t received_bytes() const { return received_bytes_; }

  /// Ends all ranks with that exit status, where they are processes; else it returns.
  virtual void abort([[maybe_unused]] int status) {}

 protected:
  Ranks(int rank, int size) : rank_(rank), size_(size) {}

 private:
  /// all = the bytes of each rank, in their order. Every rank has as many.
  virtual void exchange(std::span<const std::byte> own, std::span<std::byte> all) = 0;

  void gather(std::span<const std::byte> own, std::span<std::byte> all);

  int rank_, size_;
  std::size_t received_bytes_ = 0;
  std::vector<float> gathered_;
};

/// The only one.
class SingleRank : public Ranks {
 public:
  SingleRank() : Ranks(0, 1) {}

 private:
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override;
};

/// How many copies of this program mpirun has started, as it says in the environment; 1 without mpirun.
int started_copies();

/// The number of this one among them.
int started_rank();

}  // namespace staircase
