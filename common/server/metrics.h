// Counts what a server does, in the text format of Prometheus.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace staircase {

/// Families of values by name. After the declarations, any thread may call the functions. An undeclared name
/// throws std::out_of_range.
class Metrics {
 public:
  /// Each family is declared once, before its first value.
  void declare_counter(const std::string& name, const std::string& help);
  void declare_gauge(const std::string& name, const std::string& help);
  /// `bounds` ascend; there is one more bucket above the last.
  void declare_histogram(const std::string& name, const std::string& help, std::vector<double> bounds);

  /// Adds to a counter or gauge; `labels` is the text between the braces of {status="200"}.
  void count(const std::string& name, double by = 1.0, const std::string& labels = "");
  void set(const std::string& name, double value);
  double value(const std::string& name) const;
  void observe(const std::string& name, double value);

  /// All metrics in version 0.0.4 of the text format.
  std::string text() const;

 private:
  struct Family {
    std::string kind, help;
    std::map<std::string, double> values = {};  // by labels
    std::vector<double> bounds = {};
    std::vector<double> buckets = {};  // values in each bucket, without those of lower buckets
    double sum = 0.0;
  };

  mutable std::mutex mutex_;
  std::map<std::string, Family> families_;
};

}  // namespace staircase
