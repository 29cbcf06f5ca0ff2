// Draws what a beam search tried: the best text is the trunk, and what branches off is a twig.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/program/output.h"

namespace staircase {

/// Every token that was in a beam. Node 0 is the prompt.
class BeamTree {
 public:
  BeamTree() : nodes_(1) {}

  /// Puts a token behind a node; returns the number of the new one.
  int add(int parent, int token, double sum) {
    const int node = static_cast<int>(nodes_.size());
    nodes_[parent].children.push_back(node);
    nodes_.push_back({parent, token, sum});
    return node;
  }

  /// A text ends there.
  void end(int node, double score) { nodes_[node].score = score; }

  /// The tree, a line for each piece of text between two forks. Behind it: for a text that ended ■ and its
  /// score, for one that others drove out × and the sum of its log-probabilities.
  std::string text(const Tokenizer& tokenizer) const {
    // The heavier branch of a fork goes straight on, so the lines do not drift to the right. With the weight
    // of the best text no other comes in front of it.
    std::vector<std::size_t> weights(nodes_.size(), 1);
    weights[best()] = nodes_.size();
    for (std::size_t node = nodes_.size() - 1; node > 0; --node)
      weights[nodes_[node].parent] += weights[node];
    std::string lines;
    draw(0, "", "", weights, tokenizer, lines);
    return lines;
  }

 private:
  struct Node {
    int parent = 0, token = 0;
    double sum = 0.0;
    std::optional<double> score = {};
    std::vector<int> children = {};
  };

  int best() const {
    const auto better = [](const Node& a, const Node& b) {
      return a.score && (!b.score || *a.score > *b.score);
    };
    return static_cast<int>(std::ranges::min_element(nodes_, better) - nodes_.begin());
  }

  /// What begins at `node`; the first line after `first`, the others after `margin`.
  void draw(int node, std::string first, const std::string& margin, const std::vector<std::size_t>& weights,
            const Tokenizer& tokenizer, std::string& lines) const {
    while (true) {
      std::vector<int> tokens;
      if (node != 0) tokens.push_back(nodes_[node].token);
      while (node != 0 && nodes_[node].children.size() == 1) {
        node = nodes_[node].children[0];
        tokens.push_back(nodes_[node].token);
      }
      const Node& last = nodes_[node];
      lines += first + (node == 0 ? "prompt" : quoted(tokenizer.decode(tokens)));
      if (last.score) lines += fmt::format("  ■ {:.4f}", *last.score);
      if (!last.score && last.children.empty()) lines += fmt::format("  × {:.4f}", last.sum);
      lines += '\n';
      if (last.children.empty()) return;
      const int trunk =
          *std::ranges::max_element(last.children, {}, [&](int child) { return weights[child]; });
      for (const int child : last.children) {
        if (child != trunk) draw(child, margin + "├─ ", margin + "│  ", weights, tokenizer, lines);
      }
      node = trunk;
      first = margin;
    }
  }

  std::vector<Node> nodes_;
};

}  // namespace staircase
