// A list of all texts that a part of a pattern or a grammar describes.
#pragma once

#include <algorithm>
#include <set>
#include <string>

#include "common/text/grammar_rules.h"

namespace staircase {

/// Those of at most `longest` bytes. Rules must not contain themselves.
inline std::set<std::string> texts_of(const RegexPart& part, std::size_t longest,
                                      const GrammarRules& rules = {}) {
  using Kind = RegexPart::Kind;
  using Texts = std::set<std::string>;
  const auto each = [&](const RegexPart& one) { return texts_of(one, longest, rules); };
  const auto followed = [&](const Texts& fronts, const Texts& ends) {
    Texts both;
    for (const std::string& front : fronts) {
      for (const std::string& end : ends)
        if (front.size() + end.size() <= longest) both.insert(front + end);
    }
    return both;
  };
  // Of the part once, twice and so on, up to `most` times.
  const auto repeated = [&](int least, int most) {
    const Texts once = each(part.parts.at(0));
    Texts found, power{""};
    for (int times = 0; times <= most && !power.empty(); ++times) {
      if (times >= least) found.insert(power.begin(), power.end());
      power = followed(power, once);
    }
    return found;
  };
  const int no_limit = static_cast<int>(longest) + 1;  // one more byte each time, or no new text
  Texts found;
  switch (part.kind) {
    case Kind::kByte:
      for (int byte = part.bytes.first; byte <= part.bytes.last && longest > 0; ++byte)
        found.insert(std::string(1, static_cast<char>(byte)));
      return found;
    case Kind::kSequence:
      found = {""};
      for (const RegexPart& next : part.parts) found = followed(found, each(next));
      return found;
    case Kind::kFront: {
      Texts front = {""};
      found = front;
      for (const RegexPart& next : part.parts) {
        front = followed(front, each(next));
        found.insert(front.begin(), front.end());
      }
      return found;
    }
    case Kind::kChoice:
      for (const RegexPart& one : part.parts) found.merge(each(one));
      return found;
    case Kind::kLoop:
      return repeated(1, no_limit);
    case Kind::kRepeat:
      return repeated(part.least,
                      part.most == RegexPart::kNoLimit ? std::max(part.least, no_limit) : part.most);
    case Kind::kRule:
      return texts_of(rules.at(part.rule).part, longest, rules);
  }
  return found;
}

}  // namespace staircase
