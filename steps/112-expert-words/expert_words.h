// Shows which experts read which tokens, and how many experts a pass reads.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <set>

#include "common/base/message.h"
#include "common/base/quoted.h"
#include "common/text/tokenizer.h"
#include "plain_model.h"

namespace staircase {

/// How many different experts `rows` neighbouring tokens choose: the mean over all such groups.
inline double distinct_experts(const std::vector<Shares>& routes, std::size_t rows) {
  std::size_t sum = 0, groups = 0;
  for (; (groups + 1) * rows <= routes.size(); ++groups) {
    std::set<int> distinct;
    for (std::size_t t = groups * rows; t < (groups + 1) * rows; ++t)
      for (const auto& [expert, share] : routes[t]) distinct.insert(expert);
    sum += distinct.size();
  }
  return static_cast<double>(sum) / static_cast<double>(groups);
}

/// The expected number if each row chose k of n experts at random, leaving one out with chance 1 - k/n.
inline double expected_experts(int n, int k, std::size_t rows) {
  return n * (1.0 - std::pow(1.0 - 1.0 * k / n, static_cast<double>(rows)));
}

/// The tokens that choose an expert, the most frequent first.
inline std::vector<int> tokens_of(int expert, const std::vector<int>& tokens,
                                  const std::vector<Shares>& routes) {
  std::map<int, int> counts;
  for (std::size_t t = 0; t < tokens.size(); ++t)
    if (routes[t].contains(expert)) ++counts[tokens[t]];
  std::vector<int> order;
  for (const auto& one : counts) order.push_back(one.first);
  std::ranges::stable_sort(order, std::greater(), [&](int token) { return counts[token]; });
  return order;
}

/// Prints, for each block, the tokens that each expert reads most often, and how many experts some rows read.
inline void print_experts(const Model& model, const Tokenizer& tokenizer, const std::vector<int>& tokens) {
  const ModelConfig& config = model.config();
  PlainModel plain(model);
  plain.logits(tokens);
  for (int l = 0; l < config.n_layer; ++l) {
    for (int expert = 0; expert < config.n_experts && !plain.routes[l].empty(); ++expert) {
      std::vector<int> read = tokens_of(expert, tokens, plain.routes[l]);
      read.resize(std::min<std::size_t>(read.size(), 8));
      std::string line = fmt::format("block {}, expert {}: ", l, expert);
      for (const int token : read) line += " " + quoted(tokenizer.decode({&token, 1}));
      say(line);
    }
    for (const std::size_t rows : {1, 8, 64}) {
      if (rows > plain.routes[l].size()) continue;
      say(fmt::format("block {}: {:2} rows read {:.2f} experts; at random they would read {:.2f}", l, rows,
                      distinct_experts(plain.routes[l], rows),
                      expected_experts(config.n_experts, config.experts_per_token, rows)));
    }
  }
}

}  // namespace staircase
