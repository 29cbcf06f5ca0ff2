// Draws what a beam search tried: the best text is the trunk, and the others branch off as twigs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "beam_search.h"
#include "common/base/quoted.h"
#include "common/text/tokenizer.h"

namespace staircase {

struct TreeOptions {
  bool show_beams = false;
};

inline void add_options(OptionSink& sink, TreeOptions& options, const BeamOptions& search) {
  sink.add("--show-beams", &options.show_beams, "draw the tree of what the search tried");
  sink.warn_if([&options, &search] { return options.show_beams && search.num_beams == 1; },
               "--show-beams does nothing without --num-beams");
}

/// Every token that was in a beam. Node 0 is the prompt.
class BeamTree {
 public:
  /// Appends the last token of a beam to the text before it, whose tokens were all added earlier.
  void add(const Beam& beam) {
    nodes_.push_back({.token = beam.chosen.back().id, .sum = beam.sum});
    for (std::size_t i = 0, at = 0;; ++i) {
      Node& node = nodes_[at];
      ++node.weight;
      if (beam.finished) node.best = std::max(node.best, std::optional(beam.score));
      if (i == beam.chosen.size()) break;
      if (i + 1 == beam.chosen.size()) node.children.push_back(static_cast<int>(nodes_.size()) - 1);
      at = *std::ranges::find(node.children, beam.chosen[i].id,
                              [&](int child) { return nodes_[child].token; });
    }
  }

  /// Draws the tree from a node on, one line from fork to fork. A finished text ends with ■ and its score, a
  /// displaced one with × and its sum. `first` starts the first line, `margin` the others.
  std::string text(const Tokenizer& tokenizer, int at = 0, std::string first = "",
                   const std::string& margin = "") const {
    std::string lines;
    while (true) {
      std::vector<int> tokens(at == 0 ? 0 : 1, nodes_[at].token);
      while (at != 0 && nodes_[at].children.size() == 1) {
        at = nodes_[at].children[0];
        tokens.push_back(nodes_[at].token);
      }
      const Node& node = nodes_[at];
      lines += first + (at == 0 ? "prompt" : quoted(tokenizer.decode(tokens)));
      if (node.children.empty())
        return lines + fmt::format("  {} {:.4f}\n", node.best ? "■" : "×", node.best.value_or(node.sum));
      // The branch with the best text continues straight down. Without it, the heaviest one does, so that
      // lines do not drift to the right.
      at = *std::ranges::max_element(node.children, {}, [&](int child) {
        return std::pair(nodes_[child].best == nodes_[0].best, nodes_[child].weight);
      });
      lines += '\n';
      for (const int child : node.children) {
        if (child != at) lines += text(tokenizer, child, margin + "├─ ", margin + "│  ");
      }
      first = margin;
    }
  }

 private:
  struct Node {
    int token = 0, weight = 0;  // the weight is the number of tokens from here on
    double sum = 0.0;
    std::optional<double> best = {};  // the best score of the finished texts that go through here
    std::vector<int> children = {};
  };

  std::vector<Node> nodes_ = std::vector<Node>(1);
};

}  // namespace staircase
