// The parts of C++20 that this project uses and the standard library of Debian's emscripten (libc++ 13)
// lacks. The compiler includes this file before every source file. With a newer library it is empty.
#pragma once
#if defined(__cplusplus) && __cplusplus > 201703L

#include <version>
#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 15000

#include <algorithm>
#include <bit>
#include <functional>
#include <iterator>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace std {

template <typename To, typename From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

namespace ranges {

/// Returns a function that calls `function` on projected arguments: one for a condition, two for a
/// comparison.
template <typename Function, typename Projection>
auto projected(Function function, Projection projection) {
  return [=](auto&&... values) -> decltype(auto) {
    return std::invoke(function, std::invoke(projection, values)...);
  };
}

/// Defines an algorithm over a range with the algorithm of the same name over two iterators.
#define STAIRCASE_RANGES_UNARY(name)                                                       \
  template <typename Range, typename Function, typename Projection = std::identity>        \
  auto name(Range&& range, Function function, Projection projection = {}) {                \
    return std::name(std::begin(range), std::end(range), projected(function, projection)); \
  }
STAIRCASE_RANGES_UNARY(all_of)
STAIRCASE_RANGES_UNARY(any_of)
STAIRCASE_RANGES_UNARY(none_of)
STAIRCASE_RANGES_UNARY(count_if)
STAIRCASE_RANGES_UNARY(find_if)
STAIRCASE_RANGES_UNARY(for_each)
#undef STAIRCASE_RANGES_UNARY

#define STAIRCASE_RANGES_COMPARE(name)                                                           \
  template <typename Range, typename Compare = std::less<>, typename Projection = std::identity> \
  auto name(Range&& range, Compare compare = {}, Projection projection = {}) {                   \
    return std::name(std::begin(range), std::end(range), projected(compare, projection));        \
  }
STAIRCASE_RANGES_COMPARE(make_heap)
STAIRCASE_RANGES_COMPARE(pop_heap)
STAIRCASE_RANGES_COMPARE(push_heap)
STAIRCASE_RANGES_COMPARE(sort)
STAIRCASE_RANGES_COMPARE(sort_heap)
STAIRCASE_RANGES_COMPARE(stable_sort)
STAIRCASE_RANGES_COMPARE(max_element)
STAIRCASE_RANGES_COMPARE(min_element)
#undef STAIRCASE_RANGES_COMPARE

template <typename Range, typename Value, typename Projection = std::identity>
auto find(Range&& range, const Value& value, Projection projection = {}) {
  return find_if(
      range, [&](const auto& one) { return one == value; }, projection);
}

template <typename Range, typename Value>
auto count(Range&& range, const Value& value) {
  return std::count(std::begin(range), std::end(range), value);
}

template <typename Range>
void reverse(Range&& range) {
  std::reverse(std::begin(range), std::end(range));
}

template <typename Range, typename Value>
auto lower_bound(Range&& range, const Value& value) {
  return std::lower_bound(std::begin(range), std::end(range), value);
}

template <typename Range>
auto min(const Range& range) {
  return *std::min_element(std::begin(range), std::end(range));
}

template <typename Range>
auto max(const Range& range) {
  return *std::max_element(std::begin(range), std::end(range));
}

template <typename Value>
struct minmax_result {
  Value min;
  Value max;
};

template <typename Range>
auto minmax(const Range& range) {
  return minmax_result<std::decay_t<decltype(*std::begin(range))>>{min(range), max(range)};
}

template <typename Range, typename Output>
auto copy(Range&& range, Output output) {
  return std::copy(std::begin(range), std::end(range), output);
}

template <typename Range, typename Value>
void replace(Range&& range, const Value& before, const Value& after) {
  std::replace(std::begin(range), std::end(range), before, after);
}

template <typename Range, typename Output, typename Function>
auto transform(Range&& range, Output output, Function function) {
  return std::transform(std::begin(range), std::end(range), output, function);
}

template <typename Range, typename Iterator>
void nth_element(Range&& range, Iterator nth) {
  std::nth_element(std::begin(range), nth, std::end(range));
}

template <typename One, typename Two>
bool equal(const One& one, const Two& two) {
  return std::equal(std::begin(one), std::end(one), std::begin(two), std::end(two));
}

template <typename In1, typename In2>
struct mismatch_result {
  In1 in1;
  In2 in2;
};

template <typename One, typename Two>
auto mismatch(One&& one, Two&& two) {
  const auto [in1, in2] = std::mismatch(std::begin(one), std::end(one), std::begin(two), std::end(two));
  return mismatch_result<decltype(in1), decltype(in2)>{in1, in2};
}

}  // namespace ranges
}  // namespace std

#endif
#endif
