// Several ranks compute one model. Ranks are processes or threads that run the same program, each with a
// share of the weights.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace staircase {

/// One rank's link to the others. Every rank makes the same calls in the same order. Each call waits for all
/// ranks, except send and receive, which connect two.
class Ranks {
 public:
  virtual ~Ranks() = default;

  /// The number of this rank, from 0 to size() - 1.
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// all = the numbers of rank 0, then those of rank 1 ... Every rank contributes the same count.
  void all_gather(std::span<const float> own, std::span<float> all);

  /// Replaces each number by its sum over all ranks, added in the order of the ranks: every rank gets the
  /// same bits, in every run. With two ranks, or few numbers, each rank receives all numbers of the others.
  /// Otherwise each rank sums one slice for all ranks: it receives only 2 / size() as many numbers, but in
  /// two rounds instead of one.
  void all_reduce(std::span<float> numbers);

  /// Returns the text of rank 0 on every rank.
  std::string broadcast(const std::string& text);

  /// The first rank whose number differs from rank 0's, if there is one.
  std::optional<int> first_mismatch(std::uint64_t number);

  /// Copies the numbers for rank `to` and returns at once. Messages arrive in the order of the calls. Throws
  /// Error if `to` is this rank or does not exist.
  void send(std::span<const float> numbers, int to);

  /// Waits for the numbers that rank `from` has sent. Throws Error if their count differs, or if `from` is
  /// this rank or does not exist.
  void receive(std::span<float> numbers, int from);

  /// Throws Error unless `rank` is another rank, as send and receive do.
  void check_other(int rank) const;

  /// Returns once all ranks have called it. Waiting keeps no processor busy, however late rank 0 is.
  virtual void barrier();

  /// From now on, limits how long a rank waits for the others: `limit`, plus twice the time that the rank has
  /// computed since its last wait. When the limit is over (up to 1.8 seconds later on ranks other than 0),
  /// the rank ends all ranks with one sentence. Rank 0 may still take any time to reach `barrier`, unless it
  /// is stopped on the same machine. Signals that end programs then end only rank 0. Does nothing for
  /// threads.
  virtual void limit_waits(std::chrono::milliseconds /*limit*/) {}

  /// The bytes that this rank has received from the others.
  std::size_t received_bytes() const { return received_bytes_; }

  /// Adds bytes that this rank's device has received directly from the others' devices.
  void count_received(std::size_t bytes) { received_bytes_ += bytes; }

  /// Ends all ranks with this exit status if they are processes; otherwise returns.
  virtual void abort([[maybe_unused]] int status) {}

  /// Whether another rank is ending all ranks, and reports why.
  virtual bool is_aborting() const { return false; }

 protected:
  Ranks(int rank, int size) : rank_(rank), size_(size) {}

 private:
  /// all = the bytes of each rank, in rank order. Every rank contributes the same count.
  virtual void exchange(std::span<const std::byte> own, std::span<std::byte> all) = 0;

  /// Keeps a copy of the bytes until rank `to` has taken them.
  virtual void post(std::span<const std::byte> bytes, int to) = 0;

  /// Waits for the next message from rank `from` and copies it into `bytes` if the sizes match. Returns the
  /// size of the message.
  virtual std::size_t take(std::span<std::byte> bytes, int from) = 0;

  void gather(std::span<const std::byte> own, std::span<std::byte> all);
  void reduce_slices(std::span<float> numbers);

  int rank_, size_;
  std::size_t received_bytes_ = 0;
  std::vector<float> gathered_;
};

/// The only rank of a program that runs alone.
class SingleRank : public Ranks {
 public:
  SingleRank() : Ranks(0, 1) {}

 private:
  void exchange(std::span<const std::byte> own, std::span<std::byte> all) override;
  void post(std::span<const std::byte> /*bytes*/, int /*to*/) override {}
  std::size_t take(std::span<std::byte> /*bytes*/, int /*from*/) override { return 0; }
};

/// The number of copies of this program that mpirun has started, from the environment; 1 without mpirun.
int launched_size();

/// The number of this copy among all copies; 0 without mpirun.
int launched_rank();

/// The number of this copy among the copies on its machine; 0 without mpirun.
int launched_local_rank();

}  // namespace staircase
