#include "common/decoding/constraint.h"

#include <algorithm>
#include <ctime>
#include <set>
#include <utility>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/text/code_points.h"
#include "object_members.h"

namespace staircase {

namespace {

std::size_t parts_in(const RegexPart& part) {
  std::size_t count = 1;
  for (const RegexPart& one : part.parts) count += parts_in(one);
  return count;
}

/// Processor time of this thread, so other programs do not use up a text's time limit.
std::chrono::nanoseconds processor_time() {
  std::timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

std::shared_ptr<Constraint> Constraint::of_regex(const std::string& pattern,
                                                 std::shared_ptr<const SortedTokens> tokens) {
  return std::shared_ptr<Constraint>(new Constraint({{"root", parse_regex(pattern)}}, std::move(tokens)));
}

std::shared_ptr<Constraint> Constraint::of_grammar(GrammarRules rules,
                                                   std::shared_ptr<const SortedTokens> tokens) {
  std::size_t parts = 0;
  for (const GrammarRule& rule : rules) parts += parts_in(rule.part);
  if (parts > kMaxParts)
    throw UsageError("it becomes a grammar of {} parts, but at most {} are read", parts, kMaxParts);
  return std::shared_ptr<Constraint>(new Constraint(std::move(rules), std::move(tokens)));
}

std::shared_ptr<Constraint> Constraint::of_choices(const std::vector<std::string>& texts,
                                                   std::shared_ptr<const SortedTokens> tokens) {
  RegexPart choice{RegexPart::Kind::kChoice};
  for (const std::string& text : texts) choice.parts.push_back(bytes_of(text));
  return of_grammar({{"root", std::move(choice)}}, std::move(tokens));
}

std::shared_ptr<Constraint> Constraint::of_json_schema(std::string_view schema,
                                                       std::shared_ptr<const SortedTokens> tokens) {
  return of_grammar(json_schema_rules(schema, written_members), std::move(tokens));
}

/// Computes the first mask, so a constraint that no token can begin is rejected immediately.
Constraint::Constraint(GrammarRules rules, std::shared_ptr<const SortedTokens> tokens)
    : rules_(std::make_shared<const GrammarRules>(std::move(rules))),
      automaton_(rules_),
      tokens_(std::move(tokens)) {
  std::array<bool, 257> borders = {};
  for (const GrammarRule& rule : *rules_) mark_borders(rule.part, borders);
  for (std::size_t byte = 0; byte < class_of_.size(); ++byte) {
    if (borders[byte]) ++classes_;
    class_of_[byte] = classes_;
  }
  ++classes_;  // classes are counted from 0
  const auto one_of_each_class = [&](const ByteRange& range) {
    std::string bytes;
    for (int byte = range.first; byte <= range.last; ++byte)
      if (byte == range.first || borders[byte]) bytes += static_cast<char>(byte);
    return bytes;
  };
  for (const auto& [first, last] : all_but({{0, 0x7F}}))
    for (const std::vector<ByteRange>& form : utf8_ranges(first, last)) {
      std::vector<std::string>& bytes = beyond_ascii_.emplace_back();
      for (const ByteRange& range : form) bytes.push_back(one_of_each_class(range));
    }
  Place place;
  try {
    allowed({}, place);
  } catch (const UsageError&) {
    throw;
  } catch (const Error& error) {
    throw UsageError("{}", error.what());
  }
}

void Constraint::begin_anew() {
  table_.clear();
  next_.clear();
  numbers_.clear();
  back_.clear();
  mask_bytes_ = 0;
  is_used_ = false;
  ++generation_;
  automaton_ = StackAutomaton(rules_);
  number_of(automaton_.start());
}

int Constraint::number_of(StackAutomaton::Stacks stacks) {
  if (stacks.empty()) return kDead;
  const auto [known, is_new] = numbers_.try_emplace(std::move(stacks), static_cast<int>(table_.size()));
  if (is_new) {
    if (table_.size() == 2 * kMaxStates)
      throw Error("the constraint has more than {} states within one token", kMaxStates);
    table_.push_back({&known->first});
    next_.resize(next_.size() + classes_, kUnknown);
  }
  return known->second;
}

int Constraint::after(int state, char byte) {
  const std::size_t place =
      static_cast<std::size_t>(state) * classes_ + class_of_[static_cast<unsigned char>(byte)];
  if (next_[place] != kUnknown) return next_[place];
  if (!start_) start_ = processor_time();
  if (++steps_ % 64 == 0 && processor_time() - *start_ > left_)
    throw Error("the masks of the constraint take longer than {} seconds for one text", kMostTime.count());
  const int next = number_of(automaton_.after(*table_[static_cast<std::size_t>(state)].stacks, byte));
  return next_[place] = next;
}

/// The characters that lead a state back to the part it reads now. All stacks that read the same part next
/// share the result. Without is_back, only the few states that read a repetition are examined.
Constraint::Loop Constraint::loop(int state, bool is_back) {
  State& here = table_[static_cast<std::size_t>(state)];
  if (here.loop) return *here.loop;
  Loop widest;
  bool is_whole = true;
  for (const int stack : *here.stacks) {
    if (stack == StackAutomaton::kEmpty) continue;
    const StackAutomaton::Next next = automaton_.next(stack);
    const bool is_repetition = next.part != next.repeats;
    if (next.left < 5) continue;  // a character may take four rounds, one per byte
    if (!is_back && !is_repetition) {
      is_whole = false;
      continue;
    }
    const auto [known, is_new] = back_.try_emplace({next.repeats, is_repetition});
    if (is_new) known->second = characters_back_to(next);
    if (known->second.has_all_of(widest.characters)) widest = {known->second, next.left};
  }
  if (is_whole) here.loop = widest;
  return widest;
}

/// The characters after which the part is read again.
CharacterSet Constraint::characters_back_to(const StackAutomaton::Next& part) {
  const int from = number_of({part.alone});
  const auto is_back = [&](int state) {
    return state != kDead &&
           std::ranges::any_of(*table_[static_cast<std::size_t>(state)].stacks,
                               [&](int stack) { return automaton_.is_back_at(stack, part); });
  };
  CharacterSet found;
  for (std::uint32_t character = 0; character < 128; ++character)
    if (is_back(after(from, static_cast<char>(character)))) found.add(character);
  const bool all = std::ranges::all_of(beyond_ascii_, [&](const std::vector<std::string>& form) {
    std::set<int> here{from};
    for (const std::string& bytes : form) {
      std::set<int> next;
      for (const int one : here)
        for (const char byte : bytes)
          if (next.insert(after(one, byte)); next.contains(kDead)) return false;
      here = std::move(next);
    }
    return std::ranges::all_of(here, is_back);
  });
  if (all) found.add(128);
  return found;
}

/// The plain tokens that a state allows.
TokenBits Constraint::plain_after(int state) {
  const auto has_all = [](const Loop& loop, const CharacterSet& characters, std::size_t bytes) {
    return bytes <= loop.bytes && loop.characters.has_all_of(characters);
  };
  if (has_all(loop(state, true), tokens_->plain.characters(), tokens_->plain.depth()))
    return tokens_->plain_bits;
  const std::span<const std::uint32_t> ids = tokens_->plain.ids();
  std::vector<std::pair<std::size_t, std::size_t>> found;  // [begin, end) of ids
  std::size_t count = 0;
  tokens_->plain.walk(
      state, [&](int from, char byte) { return after(from, byte); },
      [&](int there, int before, const CharacterSet& characters, std::size_t bytes) {
        return bytes == 0 || has_all(loop(there, there == before), characters, bytes);
      },
      [&](std::size_t begin, std::size_t end) {
        count += end - begin;
        if (!found.empty() && found.back().second == begin)
          found.back().second = end;
        else
          found.emplace_back(begin, end);
      });
  // Flips the smaller set of bits one by one: those of the tokens found, or those of all others.
  const auto flip = [&](TokenBits& bits, std::size_t begin, std::size_t end) {
    for (const std::uint32_t id : ids.subspan(begin, end - begin))
      bits[id / 64] ^= std::uint64_t(1) << id % 64;
  };
  if (2 * count <= ids.size()) {
    TokenBits bits(tokens_->plain_bits.size());
    for (const auto& [begin, end] : found) flip(bits, begin, end);
    return bits;
  }
  TokenBits bits = tokens_->plain_bits;
  std::size_t next = 0;
  for (const auto& [begin, end] : found) {
    flip(bits, next, begin);
    next = end;
  }
  flip(bits, next, ids.size());
  return bits;
}

const TokenBits& Constraint::mask(int state) {
  State& here = table_[static_cast<std::size_t>(state)];
  if (!here.allowed.empty()) return here.allowed;
  if (mask_bytes_ > kMaxMaskBytes) {
    for (State& other : table_) other.allowed = {};
    mask_bytes_ = 0;
  }
  // Most states within a long string share the mask of one of these states.
  StackAutomaton::Stacks near;
  for (const int stack : *here.stacks)
    near.push_back(automaton_.near_limits(stack, static_cast<int>(tokens_->depth())));
  std::ranges::sort(near);
  near.erase(std::unique(near.begin(), near.end()), near.end());
  if (const int same = number_of(std::move(near)); same != state) return mask(same);
  TokenBits bits = plain_after(state);
  tokens_->others.walk(
      state, [&](int from, char byte) { return after(from, byte); },
      [](int, int, const CharacterSet&, std::size_t) { return false; },
      [&](std::size_t begin, std::size_t end) {
        for (const std::uint32_t id : tokens_->others.ids().subspan(begin, end - begin))
          bits[id / 64] |= std::uint64_t(1) << id % 64;
      });
  if (automaton_.accepts(*here.stacks))
    for (const int end : tokens_->ends)
      if (const auto t = static_cast<std::size_t>(end); t / 64 < bits.size())
        bits[t / 64] |= std::uint64_t(1) << t % 64;
  mask_bytes_ += bits.size() * sizeof(bits[0]);
  return here.allowed = std::move(bits);
}

const TokenBits& Constraint::mask_after(std::span<const int> text, Place& place) {
  if (place.generation != generation_) place = {generation_, 0, 0, place.time};
  const auto fail = [&] {
    throw Error("no token of this model continues {} to a text that the constraint allows",
                in_json(tokens_->tokenizer->decode(text)));
  };
  for (; place.read < text.size(); ++place.read) {
    for (const char byte : tokens_->tokenizer->bytes(text[place.read])) {
      if (place.state != kDead) place.state = after(place.state, byte);
    }
  }
  if (place.state == kDead) fail();
  const TokenBits& bits = mask(place.state);
  if (std::ranges::all_of(bits, [](std::uint64_t word) { return word == 0; })) fail();
  return bits;
}

const TokenBits& Constraint::allowed(std::span<const int> text, Place& place) {
  start_.reset();  // finding a known mask costs no time
  left_ = kMostTime - place.time;
  if (generation_ < 0 || table_.size() > kMaxStates) begin_anew();
  const TokenBits* bits = nullptr;
  try {
    bits = &mask_after(text, place);
  } catch (const Error&) {
    if (!is_used_) throw;
    begin_anew();  // earlier texts may have filled the automaton
    bits = &mask_after(text, place);
  }
  is_used_ = true;
  if (start_) place.time += processor_time() - *start_;
  return *bits;
}

void Constraint::keep_allowed(std::span<float> logits, std::span<const int> text, Place& place) {
  const TokenBits& bits = allowed(text, place);
  for (std::size_t begin = 0; begin < logits.size(); begin += 64) {
    const std::uint64_t word = begin / 64 < bits.size() ? bits[begin / 64] : 0;
    if (~word == 0) continue;  // the usual case within a string
    const std::span<float> some = logits.subspan(begin, std::min<std::size_t>(64, logits.size() - begin));
    if (word == 0) {  // the usual case elsewhere
      std::fill(some.begin(), some.end(), kMasked);
    } else {
      for (std::size_t i = 0; i < some.size(); ++i) some[i] = (word >> i & 1) != 0 ? some[i] : kMasked;
    }
  }
}

}  // namespace staircase
