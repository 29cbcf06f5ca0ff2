// Everything that a template can call: the filters, tests and methods of Jinja and Python that chat templates
// use.
#pragma once

#include <string>
#include <vector>

#include "common/text/jinja/value.h"

namespace staircase::jinja {

/// `arguments` in the order of `parameters`, whose optional ones begin with "?"; missing ones are undefined.
/// Throws Fault if they do not fit. `callee` is for the message.
std::vector<Value> bind(const std::vector<std::string>& parameters, Arguments arguments,
                        const std::string& callee);

/// input|name(arguments)
Value apply_filter(const std::string& name, const Value& input, Arguments arguments, Budget& budget);

/// input is name(arguments)
bool apply_test(const std::string& name, const Value& input, const std::vector<Value>& arguments,
                Budget& budget);

/// value.name and value[key]: undefined if there is none. Throws Fault if `value` is undefined itself.
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
