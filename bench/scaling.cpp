// The shares are the same as in the kernels, because this file calls the same functions. It ignores shared
// memory bandwidth, caches, and clock rates that fall when more processors work.
#include "bench/scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>

#include "bench/timing.h"
#include "bench/work.h"
#include "kernels/cpu/product_shares.h"

namespace staircase::bench {
namespace {

using nlohmann::json;

/// An operation of a pass. Its work is counted in floating-point operations.
struct Operation {
  std::string name;
  double times;  ///< how often per pass
  double work;   ///< operations each time
  /// The largest share of the work when this many threads divide it.
  std::function<double(int)> most;
};

/// A pass over `sequences` sequences, each with `count` new tokens after `start` earlier ones.
struct Pass {
  std::string name;
  std::int64_t sequences, count, start;
};

/// Returns the largest work of a thread when 0 .. count - 1 is divided among `threads` threads.
double most_of(int threads, std::int64_t count, const std::function<double(IndexRange)>& work) {
  double most = 0.0;
  for (int i = 0; i < threads; ++i) most = std::max(most, work(share_of(count, threads, i)));
  return most;
}

Operation product(std::string name, double times, std::int64_t rows, std::int64_t in, std::int64_t out) {
  const auto most = [=](int threads) {
    const ProductShares shares(rows, out);
    return most_of(threads, shares.count(), [&](IndexRange units) {
      double work = 0.0;
      shares.for_each_piece(units, [&](const ProductPiece& piece) {
        const std::int64_t columns =
            std::min(piece.halves.last * kHalfPanel, out) - piece.halves.first * kHalfPanel;
        work += 2.0 * static_cast<double>((piece.rows.last - piece.rows.first) * columns * in);
      });
      return work;
    });
  };
  return {std::move(name), times, 2.0 * static_cast<double>(rows * in * out), most};
}

/// Norms take 8 operations per element (normalize.cpp).
Operation norm(double times, std::int64_t rows, std::int64_t width) {
  const auto most = [=](int threads) {
    const std::int64_t few = few_rows(width);
    return most_of(threads, divide_up(rows, few), [&](IndexRange units) {
      return 8.0 * static_cast<double>(
                       (std::min(units.last * few, rows) - std::min(units.first * few, rows)) * width);
    });
  };
  return {"layer norm", times, 8.0 * static_cast<double>(rows * width), most};
}

/// A free thread claims the next head or, with many queries, the next tile of a head.
Operation attention(double times, const Pass& pass, const ModelConfig& config) {
  std::vector<double> items;
  const std::int64_t together = pass.count >= kManyQueries ? kTileQueries : pass.count;
  for (std::int64_t head = 0; head < pass.sequences * config.n_head; ++head) {
    for (std::int64_t first = 0; first < pass.count; first += together) {
      double positions = 0.0;
      for (std::int64_t q = first; q < std::min(first + together, pass.count); ++q) {
        positions += static_cast<double>(pass.start + q + 1);
      }
      items.push_back(4.0 * config.head_size * positions);
    }
  }
  double work = 0.0;
  for (const double item : items) work += item;
  const auto most = [items](int threads) {
    std::vector<double> busy(static_cast<std::size_t>(threads), 0.0);
    for (const double item : items) *std::ranges::min_element(busy) += item;
    return std::ranges::max(busy);
  };
  return {"attention", times, work, most};
}

/// Returns all operations that take more than a thousandth of a pass, and the norms.
std::vector<Operation> operations_of(const Pass& pass, const ModelConfig& config) {
  const std::int64_t rows = pass.sequences * pass.count, wanted = pass.sequences, d = config.n_embd;
  const double blocks = config.n_layer;
  const double norms = wanted == rows ? 2 * blocks + 1 : 2 * blocks - 1;
  std::vector<Operation> operations{norm(norms, rows, d), attention(blocks, pass, config)};
  for (const Product& p : block_products(config)) {
    const bool for_all = p.name == "queries, keys, values" || wanted == rows;
    operations.push_back(product(p.name, for_all ? blocks : blocks - 1, rows, p.in, p.out));
    // In the last block, only the last token of each sequence continues past attention.
    if (!for_all) operations.push_back(product(p.name + ", last block", 1, wanted, p.in, p.out));
  }
  operations.push_back(product("output layer", 1, wanted, d, config.vocab_size));
  return operations;
}

/// Returns how many seconds longer a task with `threads` shares takes than one share alone. This is the time
/// to start the other threads and to notice their ends. On a busy machine other threads may be late; the
/// result then includes another share, which the caller performed itself.
double fork_and_join(int threads) {
  constexpr double kShare = 20e-6;
  constexpr int kRounds = 2001;
  ThreadTeam team(threads);
  Samples seconds;
  for (int i = 0; i < kRounds; ++i) {
    seconds.add(seconds_of([&] {
      team.run([](int) {
        for (const double end = now() + kShare; now() < end;) {
        }
      });
    }));
  }
  return seconds.min() - kShare;
}

}  // namespace

json count_shares(const ScalingOptions& options) {
  const ModelConfig& config = options.config;
  const std::int64_t context = std::min(256, config.n_positions - 1);
  const Pass passes[] = {{fmt::format("prefill, {} tokens", std::min(512, config.n_positions)), 1,
                          std::min(512, config.n_positions), 0},
                         {fmt::format("decode, context {}", context), 1, 1, context},
                         {fmt::format("decode, batch 8, context {}", context), 8, 1, context}};
  json result{{"threads", options.threads}, {"passes", json::array()}, {"fork_and_join_us", json::array()}};
  fmt::print(
      "Counted, not timed: the mean of the threads' work in percent of the largest share.\nThe effect of "
      "shared memory, caches and power is not included.\n");
  const auto print_line = [](const std::string& name, const std::string& part,
                             const std::vector<double>& figures, int digits) {
    fmt::print("{:<36}{:>8}", name, part);
    for (const double figure : figures) fmt::print("{:>8.{}f}", figure, digits);
    fmt::print("\n");
  };
  for (const Pass& pass : passes) {
    const std::vector<Operation> operations = operations_of(pass, config);
    double all = 0.0;
    for (const Operation& o : operations) all += o.times * o.work;
    print_line("\n" + pass.name, " of work", {options.threads.begin(), options.threads.end()}, 0);
    json figures{{"name", pass.name}, {"operations", json::array()}, {"speed_up", json::array()}};
    std::vector<double> longest(options.threads.size(), 0.0), speed_up;
    for (const Operation& o : operations) {
      std::vector<double> percent;
      for (std::size_t i = 0; i < options.threads.size(); ++i) {
        const double most = o.most(options.threads[i]);
        longest[i] += o.times * most;
        percent.push_back(100.0 * o.work / options.threads[i] / most);
      }
      print_line("  " + o.name, fmt::format("{:.1f} %", 100.0 * o.times * o.work / all), percent, 0);
      figures["operations"].push_back(
          {{"name", o.name}, {"share", o.times * o.work / all}, {"percent", percent}});
    }
    for (const double most : longest) speed_up.push_back(all / most);
    print_line("  times as fast as one (upper limit)", "", speed_up, 1);
    figures["speed_up"] = speed_up;
    result["passes"].push_back(figures);
  }
  fmt::print("\n");
  for (const int threads : options.threads) {
    if (threads < 2 || threads > available_processors()) continue;
    const double microseconds = 1e6 * fork_and_join(threads);
    fmt::print("handing a task to {} threads and waiting for them takes {:.1f} µs at best (measured)\n",
               threads, microseconds);
    result["fork_and_join_us"].push_back({{"threads", threads}, {"us", microseconds}});
  }
  return result;
}

}  // namespace staircase::bench
