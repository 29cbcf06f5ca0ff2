// Everything that a template can call: the filters and tests of Jinja and the methods of Python that chat
// templates use.
#pragma once

#include <string>
#include <vector>

#include "common/text/jinja/value.h"

namespace staircase::jinja {

/// Returns `arguments` in the order of `parameters`. The name of an optional parameter begins with "?", and
/// its value is undefined if the argument is missing. Throws Fault if the arguments do not fit. `callee` is
/// for the message.
std::vector<Value> bind(const std::vector<std::string>& parameters, Arguments arguments,
                        const std::string& callee);

/// input|name(arguments)
Value apply_filter(const std::string& name, const Value& input, Arguments arguments, Budget& budget);

/// input is name(arguments)
bool apply_test(const std::string& name, const Value& input, const std::vector<Value>& arguments,
                Budget& budget);

/// value.name and value[key]; undefined if `value` has no such attribute or item. Throws Fault if `value`
/// itself is undefined.
Value attribute(const Value& value, const std::string& name, Budget& budget);
Value item(const Value& value, const Value& key, Budget& budget);

/// value[begin:end:step]
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);

/// -a or +a
Value with_sign(const std::string& sign, const Value& value, Budget& budget);

/// a + b and the like; `sign` is one of + - * / // % ~
Value binary(const std::string& sign, const Value& a, const Value& b, Budget& budget);

/// `text` repeated `times` times.
Text repeated(const Text& text, std::int64_t times, Budget& budget);

}  // namespace staircase::jinja
