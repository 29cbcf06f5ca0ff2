// One model computed by several ranks: processes, or threads, that run the same program, each with a share of
// the weights.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace staircase {

/// One rank's link to the others. Every rank makes the same calls in the same order, and each call waits for
/// all ranks, except send and receive, which are between two.
class Ranks {
 public:
  virtual ~Ranks() = default;

  /// From 0 to size() - 1.
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// all = the numbers of rank 0, then those of rank 1 ... Every rank has as many.
  void all_gather(std::span<const float> own, std::span<float> all);

  /// Each number becomes its sum over all ranks, added in the order of the ranks: every rank gets the same
  /// bits, in every run. With two ranks, or few numbers, each rank receives everything the others have. Else
  /// it adds up one slice for all of them: it receives 2 / size() of that, in twice as many calls.
  void all_reduce(std::span<float> numbers);

  /// The text of rank 0.
  std::string broadcast(const std::string& text);

  /// The first rank whose number is not that of rank 0, if there is one.
  std::optional<int> first_mismatch(std::uint64_t number);

  /// Copies the numbers for rank `to`, another one, and returns at once; they arrive in the order of the
  /// calls.
  void send(std::span<const float> numbers, int to);

  /// Waits for the numbers that rank `from`, another one, has sent. Throws Error if they are more or fewer.
  void receive(std::span<float> numbers, int from);

  /// Throws Error unless it is another rank, as both do.
  void check_other(int rank) const;

  /// Returns once all ranks have called it. That takes no processor meanwhile, however late rank 0 is.
  virtual void barrier();

  /// From now on, a rank limits its waits for the others. The limit is that time, plus twice the time that it
  /// has worked itself since the last call. After it, the rank ends all ranks with one sentence. Rank 0 may
  /// still be late for `barrier`, unless it is stopped on the same machine. Only rank 0 then handles signals
  /// that end programs. Only for processes.
  virtual void limit_waits(std::chrono::milliseconds /*limit*/) {}

  /// The bytes that this rank has received from the others.
  std::size_t received_bytes() const { return received_bytes_; }

  /// Counts bytes that its device has received directly from the others' devices.
  void count_received(std::size_t bytes) { received_bytes_ += bytes; }

  /// Ends all ranks with that exit status if they are processes; otherwise returns.
  virtual void abort([[maybe_unused]] int status) {}

  /// Whether another rank ends all, and says why.
  virtual bool is_aborting() const { return false; }

 protected:
  Ranks(int rank, int size) : rank_(rank), size_(size) {}

 private:
  /// all = the bytes of each rank, in their order. Every rank has as many.
  virtual void exchange(std::span<const std::byte> own, std::span<std::byte> all) = 0;

  /// Keeps a copy of the bytes until rank `to` has taken them.
  virtual void post(std::span<const std::byte> bytes, int to) = 0;

  /// Takes the next bytes from rank `from`, into `bytes` if they fit exactly. Returns their number.
  virtual std::size_t take(std::span<std::byte> bytes, int from) = 0;

  void gather(std::span<const std::byte> own, std::span<std::byte> all);
  void reduce_slices(std::span<float> numbers);

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
  void post(std::span<const std::byte> /*bytes*/, int /*to*/) override {}
  std::size_t take(std::span<std::byte> /*bytes*/, int /*from*/) override { return 0; }
};

/// The number of copies of this program that mpirun has started, from the environment; 1 without mpirun.
int launched_size();

/// The number of this copy among them.
int launched_rank();

/// Its number among the copies on its machine.
int launched_local_rank();

}  // namespace staircase
