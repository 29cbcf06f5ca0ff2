#include "common/server/metrics.h"

#include <fmt/format.h>

#include <algorithm>

namespace staircase {

void Metrics::declare_counter(const std::string& name, const std::string& help) {
  families_[name] = {.kind = "counter", .help = help};
}

void Metrics::declare_gauge(const std::string& name, const std::string& help) {
  families_[name] = {.kind = "gauge", .help = help, .values = {{"", 0.0}}};
}

void Metrics::declare_histogram(const std::string& name, const std::string& help,
                                std::vector<double> bounds) {
  std::vector<double> buckets(bounds.size() + 1);
  families_[name] = {
      .kind = "histogram", .help = help, .bounds = std::move(bounds), .buckets = std::move(buckets)};
}

void Metrics::count(const std::string& name, double by, const std::string& labels) {
  const std::scoped_lock lock(mutex_);
  families_.at(name).values[labels] += by;
}

void Metrics::set(const std::string& name, double value) {
  const std::scoped_lock lock(mutex_);
  families_.at(name).values[""] = value;
}

double Metrics::value(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  return families_.at(name).values.at("");
}

void Metrics::observe(const std::string& name, double value) {
  const std::scoped_lock lock(mutex_);
  Family& family = families_.at(name);
  const auto place = std::ranges::lower_bound(family.bounds, value) - family.bounds.begin();
  family.buckets[static_cast<std::size_t>(place)] += 1.0;
  family.sum += value;
}

std::string Metrics::text() const {
  const std::scoped_lock lock(mutex_);
  std::string text;
  for (const auto& [name, family] : families_) {
    text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, family.help, name, family.kind);
    for (const auto& [labels, value] : family.values) {
      text += labels.empty() ? fmt::format("{} {}\n", name, value)
                             : fmt::format("{}{{{}}} {}\n", name, labels, value);
    }
    double count = 0.0;  // of all buckets so far
    for (std::size_t i = 0; i < family.buckets.size(); ++i) {
      count += family.buckets[i];
      const std::string bound = i < family.bounds.size() ? fmt::format("{}", family.bounds[i]) : "+Inf";
      text += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, bound, count);
    }
    if (!family.buckets.empty()) {
      text += fmt::format("{}_sum {}\n{}_count {}\n", name, family.sum, name, count);
    }
  }
  return text;
}

}  // namespace staircase
