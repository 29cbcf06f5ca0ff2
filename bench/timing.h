// How the benchmark measures time: in rounds, with one sample of every task per round. So a slow phase of the
// machine slows the work and its limit alike.
#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace staircase::bench {

/// The samples of a task: one number per round.
class Samples {
 public:
  void add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  const std::vector<double>& values() const { return values_; }

  double min() const { return *std::min_element(values_.begin(), values_.end()); }
  double max() const { return *std::max_element(values_.begin(), values_.end()); }
  double median() const {
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

 private:
  std::vector<double> values_;
};

/// Chooses the clock of all measurements: if true, the processor time of this process. That time stops while
/// other processes use the processor, so it measures the work even on a busy machine. This works only for one
/// thread, because threads that wait for each other also use processor time.
inline bool use_processor_time = false;

inline double now() {
  if (!use_processor_time) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

/// Runs `work` and returns the seconds that it took.
template <typename Work>
double seconds_of(const Work& work) {
  const double start = now();
  work();
  return now() - start;
}

/// Returns the seconds per call of `work`. Calls it once to warm the caches, then until `at_least` seconds
/// have passed.
template <typename Work>
double seconds_per_call(double at_least, const Work& work) {
  work();
  double total = 0.0;
  int calls = 0;
  do {
    total += seconds_of(work);
    ++calls;
  } while (total < at_least);
  return total / calls;
}

/// A thing to measure: `sample` measures it once and returns the seconds.
struct Task {
  std::function<double()> sample;
  Samples seconds;
};

/// Every round takes one sample of each task.
inline void measure_in_rounds(const std::vector<Task*>& tasks, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (Task* task : tasks) task->seconds.add(task->sample());
  }
}

}  // namespace staircase::bench
