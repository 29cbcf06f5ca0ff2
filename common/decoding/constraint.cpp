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

/// Of this thread: other programs on a busy machine take no time from a text.
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

/// The first mask is computed here, so what no token can begin is refused at once.
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
  ++classes_;  // they are counted from 0
  const auto one_of_each_class = [&](const ByteRange& range) {
    std::string bytes;
    for (int byte = range.first; byte <= range.last; ++byte)
      if (byte == range.first || borders[byte]) bytes += static_cast<char>(byte);
    return bytes;
  };
  for (const auto& [first, last] : all_but({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}))
    for (const std::vector<ByteRange>& form : utf8_ranges(first, last)) {
      std::vector<std::string>& bytes = plain_.emplace_back();
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
  takes_plain_.clear();
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
  if (++steps_ % 16 == 0 && processor_time() - *start_ > left_)
    throw Error("the masks of the constraint take longer than {} seconds for one text", kMostTime.count());
  const int next = number_of(automaton_.after(*table_[static_cast<std::size_t>(state)].stacks, byte));
  return next_[place] = next;
}

/// Whether each plain token leads somewhere. It is enough if one stack takes them by the rule on its top,
/// which is tried once for all stacks that have it there.
bool Constraint::takes_plain_tokens(int state) {
  return std::ranges::any_of(*table_[static_cast<std::size_t>(state)].stacks, [&](int stack) {
    const int rule = automaton_.first_rule(stack);
    const auto [known, is_new] = takes_plain_.try_emplace(rule, false);
    if (is_new) known->second = all_lead_on(number_of({rule}));
    return known->second;
  });
}

/// Tries whole characters, until they lead to no new state or are as long as the longest plain token.
bool Constraint::all_lead_on(int state) {
  std::set<int> seen{state};
  std::vector<int> latest{state};
  for (std::size_t length = 0; length < SortedTokens::kMaxPlainBytes && !latest.empty(); ++length) {
    std::set<int> reached;
    for (const int from : latest)
      for (const std::vector<std::string>& form : plain_) {
        std::set<int> here{from};
        for (const std::string& bytes : form) {
          std::set<int> next;
          for (const int one : here)
            for (const char byte : bytes)
              if (next.insert(after(one, byte)); next.contains(kDead)) return false;
          here = std::move(next);
        }
        reached.merge(here);
      }
    latest.clear();
    for (const int one : reached)
      if (seen.insert(one).second) latest.push_back(one);
    if (seen.size() > kMaxPlainStates) return false;
  }
  return true;
}

const TokenBits& Constraint::mask(int state) {
  State& here = table_[static_cast<std::size_t>(state)];
  if (!here.allowed.empty()) return here.allowed;
  if (mask_bytes_ > kMaxMaskBytes) {
    for (State& other : table_) other.allowed = {};
    mask_bytes_ = 0;
  }
  // Most states within a long string have the mask of one of them.
  StackAutomaton::Stacks near;
  for (const int stack : *here.stacks)
    near.push_back(automaton_.near_limits(stack, static_cast<int>(tokens_->all.depth())));
  std::ranges::sort(near);
  near.erase(std::unique(near.begin(), near.end()), near.end());
  if (const int same = number_of(std::move(near)); same != state) return mask(same);
  const bool takes_plain = takes_plain_tokens(state);
  TokenBits bits = takes_plain ? tokens_->plain : TokenBits(tokens_->plain.size());
  (takes_plain ? tokens_->others : tokens_->all)
      .walk(
          state, [&](int from, char byte) { return after(from, byte); }, bits);
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
  start_.reset();  // what is known already takes no time
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
    if (~word == 0) continue;  // most of them within a string
    const std::span<float> some = logits.subspan(begin, std::min<std::size_t>(64, logits.size() - begin));
    if (word == 0) {  // most of them elsewhere
      std::fill(some.begin(), some.end(), kMasked);
    } else {
      for (std::size_t i = 0; i < some.size(); ++i) some[i] = (word >> i & 1) != 0 ? some[i] : kMasked;
    }
  }
}

}  // namespace staircase
