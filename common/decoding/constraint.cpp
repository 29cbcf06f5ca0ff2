#include "common/decoding/constraint.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/text/code_points.h"
#include "grammar.h"
#include "object_members.h"
#include "regex.h"

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

/// Marks each byte at which a range begins, and the byte after its last one.
void mark_borders(const RegexPart& part, std::array<bool, 257>& borders) {
  if (part.kind == RegexPart::Kind::kByte) borders[part.bytes.first] = borders[part.bytes.last + 1] = true;
  for (const RegexPart& one : part.parts) mark_borders(one, borders);
}

}  // namespace

SortedTokens::SortedTokens(const Tokenizer& tokenizer, EndTokens ends)
    : tokenizer(&tokenizer), ends(std::move(ends)) {
  std::vector<bool> is_text(static_cast<std::size_t>(tokenizer.vocab_size()), true);
  for (const int marker : tokenizer.special_tokens()) is_text[static_cast<std::size_t>(marker)] = false;
  for (const int end : this->ends)
    if (end < tokenizer.vocab_size()) is_text[static_cast<std::size_t>(end)] = false;
  for (int token = 0; token < tokenizer.vocab_size(); ++token) {
    const std::string_view bytes = tokenizer.bytes(token);
    if (is_text[static_cast<std::size_t>(token)] && !bytes.empty()) entries.push_back({bytes, token, 0});
  }
  std::ranges::sort(entries, {}, &Entry::bytes);
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const std::string_view one = entries[i - 1].bytes, other = entries[i].bytes;
    entries[i].shared = static_cast<std::size_t>(std::ranges::mismatch(one, other).in1 - one.begin());
  }
}

template <typename Made>
Constraint::Automaton Constraint::automaton(std::shared_ptr<const Made> made) {
  return {[made] { return made->start(); },
          [made](const States& states, std::string_view text) { return made->after(states, text); },
          [made](const States& states) { return made->accepts(states); }};
}

std::shared_ptr<Constraint> Constraint::of_regex(const std::string& pattern,
                                                 std::shared_ptr<const SortedTokens> tokens) {
  const auto regex = std::make_shared<const Regex>(pattern);  // it keeps nothing between calls
  return std::shared_ptr<Constraint>(new Constraint([regex] { return automaton(regex); },
                                                    {{"root", parse_regex(pattern)}}, std::move(tokens)));
}

std::shared_ptr<Constraint> Constraint::of_grammar(GrammarRules rules,
                                                   std::shared_ptr<const SortedTokens> tokens) {
  std::size_t parts = 0;
  for (const GrammarRule& rule : rules) parts += parts_in(rule.part);
  if (parts > kMaxParts)
    throw UsageError("it becomes a grammar of {} parts, but at most {} are read", parts, kMaxParts);
  const auto shared = std::make_shared<const Grammar>(rules);
  // A copy, which has met no text yet.
  return std::shared_ptr<Constraint>(new Constraint(
      [shared] { return automaton(std::make_shared<const Grammar>(*shared)); }, rules, std::move(tokens)));
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
Constraint::Constraint(std::function<Automaton()> make, const GrammarRules& parts,
                       std::shared_ptr<const SortedTokens> tokens)
    : make_(std::move(make)), tokens_(std::move(tokens)) {
  std::array<bool, 257> borders = {};
  for (const GrammarRule& rule : parts) mark_borders(rule.part, borders);
  for (std::size_t byte = 0; byte < class_of_.size(); ++byte) {
    if (borders[byte]) ++classes_;
    class_of_[byte] = classes_;
  }
  ++classes_;  // they are counted from 0
  std::vector<float> logits(static_cast<std::size_t>(tokens_->tokenizer->vocab_size()));
  Place place;
  try {
    keep_allowed(logits, {}, place);
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
  mask_bytes_ = 0;
  is_used_ = false;
  ++generation_;
  automaton_ = make_();
  number_of(automaton_.start());
}

int Constraint::number_of(States states) {
  if (states.empty()) return kDead;
  if (states.size() > kMaxAtOnce)
    throw Error("the constraint is in {} states at once, but at most {} are followed", states.size(),
                kMaxAtOnce);
  const auto [known, is_new] = numbers_.try_emplace(std::move(states), static_cast<int>(table_.size()));
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
  if (processor_time() > latest_end_)
    throw Error("the masks of the constraint take longer than {} seconds for one text", kMostTime.count());
  const States& states = *table_[static_cast<std::size_t>(state)].states;
  const int next = number_of(automaton_.after(states, std::string_view(&byte, 1)));
  return next_[place] = next;
}

const std::vector<std::uint64_t>& Constraint::allowed(int state, std::size_t vocab_size) {
  State& here = table_[static_cast<std::size_t>(state)];
  if (!here.allowed.empty()) return here.allowed;
  if (mask_bytes_ > kMaxMaskBytes) {
    for (State& other : table_) other.allowed = {};
    mask_bytes_ = 0;
  }
  std::vector<std::uint64_t> bits((vocab_size + 63) / 64);
  const auto allow = [&](int token) {
    const auto t = static_cast<std::size_t>(token);
    if (t < vocab_size) bits[t / 64] |= std::uint64_t(1) << t % 64;
  };
  std::vector<int> path{state};  // the states after 0, 1, 2 … bytes of the entry; shorter if it led nowhere
  for (const auto& [bytes, token, shared] : tokens_->entries) {
    if (shared >= path.size()) continue;  // it begins with what led nowhere
    path.resize(shared + 1);
    while (path.size() <= bytes.size()) {
      const int next = after(path.back(), bytes[path.size() - 1]);
      if (next == kDead) break;
      path.push_back(next);
    }
    if (path.size() > bytes.size()) allow(token);
  }
  if (automaton_.accepts(*here.states)) std::ranges::for_each(tokens_->ends, allow);
  mask_bytes_ += bits.size() * sizeof(bits[0]);
  return here.allowed = std::move(bits);
}

void Constraint::apply(std::span<float> logits, std::span<const int> text, Place& place) {
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
  const std::vector<std::uint64_t>& bits = allowed(place.state, logits.size());
  if (std::ranges::all_of(bits, [](std::uint64_t word) { return word == 0; })) fail();
  for (std::size_t i = 0; i < logits.size(); ++i)
    logits[i] = (bits[i / 64] >> i % 64 & 1) != 0 ? logits[i] : kMasked;
}

void Constraint::keep_allowed(std::span<float> logits, std::span<const int> text, Place& place) {
  const auto start = processor_time();
  latest_end_ = start + kMostTime - place.time;
  if (generation_ < 0 || table_.size() > kMaxStates) begin_anew();
  try {
    apply(logits, text, place);
  } catch (const Error&) {
    if (!is_used_) throw;
    begin_anew();  // earlier texts may have filled the automaton
    apply(logits, text, place);
  }
  is_used_ = true;
  place.time += processor_time() - start;
}

}  // namespace staircase
