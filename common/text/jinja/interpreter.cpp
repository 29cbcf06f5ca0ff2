// Walks the tree of a template: expressions become values, statements write text.
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/text/jinja.h"
#include "common/text/jinja/builtins.h"
#include "common/text/jinja/tree.h"

namespace staircase {

namespace jinja {

namespace {

/// How deep expressions and blocks may nest during evaluation, counted through all active macros.
constexpr int kMostDepth = 500;
/// The limit of Jinja's sandbox.
constexpr std::int64_t kLongestRange = 100'000;

/// The variables of a block, searched before those of the blocks around it.
struct Scope {
  std::map<std::string, Value> variables;
  std::shared_ptr<Scope> outer;

  const Value* find(const std::string& name) const {
    for (const Scope* scope = this; scope; scope = scope->outer.get()) {
      const auto found = scope->variables.find(name);
      if (found != scope->variables.end()) return &found->second;
    }
    return nullptr;
  }
};

enum class Flow { kNext, kBreak, kContinue };

class Interpreter {
 public:
  Interpreter(const RenderInput& input, const RenderLimits& limits)
      : budget_{limits.steps, limits.bytes}, most_output_(limits.output), now_(input.now) {
    for (const auto& [name, text] : input.own) scope_->variables[name] = Text::of_template(text);
    for (const auto& [name, value] : input.data.items()) scope_->variables[name] = from_json(value);
    define("range", [this](Arguments arguments) { return range(std::move(arguments)); });
    define("dict", [this](Arguments arguments) { return make_dict(dict(std::move(arguments)), budget_); });
    define("namespace", [this](Arguments arguments) { return name_space(std::move(arguments)); });
    define("raise_exception", [this](Arguments arguments) { return raise(std::move(arguments)); });
    define("strftime_now", [this](Arguments arguments) { return strftime_now(std::move(arguments)); });
  }

  /// A namespace may contain itself, so clearing all of them breaks the cycles.
  ~Interpreter() {
    for (const auto& name_space : namespaces_) name_space->attributes.items.clear();
  }

  Rendered run(const std::vector<Node>& body) try {
    execute(body);
    std::vector<bool> own(output_.size());
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = output_.origins[i] == Text::kTemplate;
    return {std::move(output_.bytes), std::move(own)};
  } catch (const Fault& fault) {
    throw Error("the template's line {} {}", line_, fault.what());
  }

 private:
  /// Counts the nested evaluations in progress.
  struct Level {
    explicit Level(Interpreter& interpreter) : depth(interpreter.depth_) {
      if (depth >= kMostDepth) throw Fault("is nested too deeply, perhaps by a macro that calls itself");
      ++depth;
    }
    ~Level() { --depth; }
    int& depth;
  };

  /// A scope for variables that end with a block.
  class Inner {
   public:
    Inner(Interpreter& interpreter, std::shared_ptr<Scope> outer)
        : scope_(interpreter.scope_),
          saved_(std::exchange(scope_, std::make_shared<Scope>(Scope{{}, std::move(outer)}))) {}
    explicit Inner(Interpreter& interpreter) : Inner(interpreter, interpreter.scope_) {}
    ~Inner() { scope_ = std::move(saved_); }

   private:
    std::shared_ptr<Scope>& scope_;
    std::shared_ptr<Scope> saved_;
  };

  // The functions that every template can call.

  template <typename Call>
  void define(const std::string& name, Call call) {
    scope_->variables.emplace(name, std::make_shared<const Function>(Function{name, std::move(call)}));
  }

  Value range(Arguments arguments) {
    std::vector<std::int64_t> numbers;
    if (!arguments.named.empty()) throw Fault("gives range an argument by name");
    const std::size_t given = arguments.values.size();
    std::vector<Value> values = bind({"start", "?stop", "?step"}, std::move(arguments), "range");
    values.resize(given);
    for (const Value& value : values) {
      if (!value.integer())
        throw Fault(fmt::format("calls range with {} instead of an integer", value.kind()));
      numbers.push_back(*value.integer());
    }
    if (numbers.size() == 1) numbers.insert(numbers.begin(), 0);
    const std::int64_t step = numbers.size() > 2 ? numbers[2] : 1;
    if (step == 0) throw Fault("calls range with a step of 0");
    std::vector<Value> items;
    for (std::int64_t i = numbers[0]; step > 0 ? i < numbers[1] : i > numbers[1];) {
      if (items.size() == kLongestRange)
        throw Fault(fmt::format("makes a range of more than {} integers", kLongestRange));
      items.emplace_back(i);
      if (__builtin_add_overflow(i, step, &i)) break;
    }
    return make_list(std::move(items), budget_, Sequence::Kind::kRange);
  }

  Dict dict(Arguments arguments) {
    Dict dict;
    for (const Value& value : arguments.values) {
      if (!value.dict()) throw Fault(fmt::format("makes a dict of {}", value.kind()));
      dict = *value.dict();
    }
    for (auto& [name, value] : arguments.named) dict.set(Text::of_template(name), std::move(value), budget_);
    return dict;
  }

  Value name_space(Arguments arguments) {
    budget_.spend_bytes(sizeof(Namespace));
    namespaces_.push_back(std::make_shared<Namespace>(Namespace{dict(std::move(arguments))}));
    return namespaces_.back();
  }

  Value raise(Arguments arguments) {
    const Value message = bind({"message"}, std::move(arguments), "raise_exception").front();
    throw Fault("raises an exception: " + to_text(message, budget_).bytes);
  }

  Value strftime_now(Arguments arguments) {
    const Value format = bind({"format"}, std::move(arguments), "strftime_now").front();
    if (!format.text())
      throw Fault(fmt::format("calls strftime_now with {} instead of a text", format.kind()));
    char written[1000];
    const std::size_t size = std::strftime(written, sizeof(written), format.text()->bytes.c_str(), &now_);
    return Text::mixed({written, size}, {format.text()});
  }

  // Statements.

  void write(const Text& text) {
    if (output_.size() + text.size() > most_output_)
      throw Fault(fmt::format("makes more than {} bytes of text", most_output_));
    budget_.spend_bytes(text.size());
    output_.append(text);
  }

  Flow execute(const std::vector<Node>& body) {
    for (const Node& node : body) {
      const Flow flow = execute(node);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow execute(const Node& node) {
    const Level level(*this);
    budget_.spend_steps();
    line_ = node.line;
    switch (node.kind) {
      case Node::Kind::kText:
        write(*node.value.text());
        return Flow::kNext;
      case Node::Kind::kOutput:
        write(to_text(evaluate(node.children[0]), budget_));
        return Flow::kNext;
      case Node::Kind::kIf:
        return execute(is_true(evaluate(node.children[0])) ? node.body : node.otherwise);
      case Node::Kind::kFor:
        return loop(node);
      case Node::Kind::kSet:
        set(node, evaluate(node.children[0]));
        return Flow::kNext;
      case Node::Kind::kSetBlock:
        set(node, captured(node));
        return Flow::kNext;
      case Node::Kind::kFilterBlock:
        write(to_text(captured(node), budget_));
        return Flow::kNext;
      case Node::Kind::kMacro:
        return macro(node);
      case Node::Kind::kBreak:
        return Flow::kBreak;
      case Node::Kind::kContinue:
        return Flow::kContinue;
      default:
        break;
    }
    const Inner inner(*this);
    return execute(node.body);
  }

  /// The text of a body, after the filters in the node's child.
  Value captured(const Node& node) {
    const Inner inner(*this);
    scope_->variables[""] = text_of(node.body);
    return evaluate(node.children[0]);
  }

  Text text_of(const std::vector<Node>& body) {
    Text outside = std::exchange(output_, {});
    execute(body);
    return std::exchange(output_, std::move(outside));
  }

  void assign(const std::vector<std::string>& names, const Value& value) {
    if (names.size() == 1) {
      scope_->variables[names[0]] = value;
      return;
    }
    const std::vector<Value> parts = elements(value, budget_);
    if (parts.size() != names.size())
      throw Fault(fmt::format("unpacks {} values into {} names", parts.size(), names.size()));
    for (std::size_t i = 0; i < names.size(); ++i) scope_->variables[names[i]] = parts[i];
  }

  void set(const Node& node, const Value& value) {
    line_ = node.line;
    if (node.name.empty()) return assign(node.names, value);
    const Value* found = scope_->find(node.names[0]);
    Namespace* space = found ? found->name_space() : nullptr;
    if (!space)
      throw Fault(
          fmt::format("sets an attribute of {}, which is not a namespace", quoted(node.names[0], 40)));
    space->attributes.set(Text::of_template(node.name), value, budget_);
  }

  Flow loop(const Node& node) {
    auto loop = std::make_shared<Loop>();
    const Value all = evaluate(node.children[0]);
    line_ = node.line;
    for (Value& value : elements(all, budget_)) {
      if (node.children.size() > 1) {
        const Inner inner(*this);
        assign(node.names, value);
        if (!is_true(evaluate(node.children[1]))) continue;
      }
      loop->items.push_back(std::move(value));
    }
    if (loop->items.empty()) return execute(node.otherwise);
    for (; loop->index < loop->items.size(); ++loop->index) {
      budget_.spend_steps();
      const Inner inner(*this);
      scope_->variables["loop"] = std::shared_ptr<const Loop>(loop);
      assign(node.names, loop->items[loop->index]);
      if (execute(node.body) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  /// Defines a macro. It sees the variables of the block that defines it, with their values at the time of a
  /// call.
  Flow macro(const Node& node) {
    std::vector<std::string> parameters = node.names;
    for (std::string& parameter : parameters) parameter.insert(parameter.begin(), '?');
    const std::size_t first_default = parameters.size() - node.children.size();
    std::weak_ptr<Scope> home = scope_;  // weak, because the scope holds the macro
    const auto call = [this, &node, parameters, home, first_default](Arguments arguments) -> Value {
      const std::shared_ptr<Scope> outer = home.lock();
      if (!outer) throw Fault(fmt::format("calls the macro {}, whose block is over", quoted(node.name, 40)));
      const std::size_t in_order = arguments.values.size();
      std::set<std::string> named;
      for (const auto& argument : arguments.named) named.insert(argument.first);
      std::vector<Value> values = bind(parameters, std::move(arguments), node.name);
      const Inner inner(*this, outer);
      // There are never extra arguments and never a caller.
      scope_->variables = {{"varargs", make_list({}, budget_, Sequence::Kind::kTuple)},
                           {"kwargs", make_dict({}, budget_)},
                           {"caller", Undefined{"caller"}}};
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool absent = i >= std::max(first_default, in_order) && !named.contains(node.names[i]);
        scope_->variables[node.names[i]] = absent ? evaluate(node.children[i - first_default]) : values[i];
      }
      return text_of(node.body);
    };
    scope_->variables[node.name] = std::make_shared<const Function>(Function{node.name, call});
    return Flow::kNext;
  }

  // Expressions.

  Value evaluate(const Node& node) {
    const Level level(*this);
    budget_.spend_steps();
    line_ = node.line;
    switch (node.kind) {
      case Node::Kind::kLiteral:
        return node.value;
      case Node::Kind::kName:
        return variable(node.name);
      case Node::Kind::kNot:
        return !is_true(evaluate(node.children[0]));
      case Node::Kind::kAnd:
        return either(node, false);
      case Node::Kind::kOr:
        return either(node, true);
      case Node::Kind::kChoice:
        return choice(node);
      case Node::Kind::kCompare:
        return compare(node);
      case Node::Kind::kCall:
        return call(node);
      case Node::Kind::kFilter:
        return filter(node);
      default:
        return of_operands(node, evaluate_all(node));
    }
  }

  std::vector<Value> evaluate_all(const Node& node) {
    std::vector<Value> values;
    for (const Node& child : node.children) values.push_back(evaluate(child));
    line_ = node.line;
    return values;
  }

  /// Computes an operation on evaluated operands.
  Value of_operands(const Node& node, std::vector<Value> operands) {
    switch (node.kind) {
      case Node::Kind::kAttribute:
        return attribute(operands[0], node.name, budget_);
      case Node::Kind::kItem:
        return item(operands[0], operands[1], budget_);
      case Node::Kind::kSlice:
        return slice(operands[0], operands[1], operands[2], operands[3], budget_);
      case Node::Kind::kBinary:
        return binary(node.name, operands[0], operands[1], budget_);
      case Node::Kind::kSigned:
        return with_sign(node.name, operands[0], budget_);
      case Node::Kind::kList:
        return make_list(std::move(operands), budget_);
      case Node::Kind::kTuple:
        return make_list(std::move(operands), budget_, Sequence::Kind::kTuple);
      case Node::Kind::kTest:
        return apply_test(node.name, operands[0], {operands.begin() + 1, operands.end()}, budget_);
      default:
        break;
    }
    Dict dict;
    for (std::size_t i = 0; i + 1 < operands.size(); i += 2) dict.set(operands[i], operands[i + 1], budget_);
    return make_dict(std::move(dict), budget_);
  }

  Value variable(const std::string& name) {
    const Value* found = scope_->find(name);
    return found ? *found : Value(Undefined{name});
  }

  /// "and" and "or": as in Python, the result is one of the two values.
  Value either(const Node& node, bool first_if) {
    Value first = evaluate(node.children[0]);
    return is_true(first) == first_if ? first : evaluate(node.children[1]);
  }

  Value choice(const Node& node) {
    if (is_true(evaluate(node.children[0]))) return evaluate(node.children[1]);
    return node.children.size() > 2 ? evaluate(node.children[2]) : Value(Undefined{"an if without else"});
  }

  /// a < b < c is a < b and b < c, and c is not evaluated if a < b is false.
  Value compare(const Node& node) {
    Value left = evaluate(node.children[0]);
    for (std::size_t i = 0; i < node.names.size(); ++i) {
      Value right = evaluate(node.children[i + 1]);
      line_ = node.line;
      if (!holds(node.names[i], left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  bool holds(const std::string& sign, const Value& a, const Value& b) {
    if (sign == "==") return equal(a, b, budget_);
    if (sign == "!=") return !equal(a, b, budget_);
    if (sign == "in") return contains(b, a, budget_);
    if (sign == "not in") return !contains(b, a, budget_);
    if (sign == "<") return less(a, b, budget_);
    if (sign == ">") return less(b, a, budget_);
    return sign == "<=" ? !less(b, a, budget_) : !less(a, b, budget_);
  }

  /// The arguments of a call or filter: all children after the first.
  Arguments arguments(const Node& node) {
    Arguments arguments;
    const std::size_t first_named = node.children.size() - node.names.size();
    for (std::size_t i = 1; i < node.children.size(); ++i) {
      Value value = evaluate(node.children[i]);
      if (i < first_named) {
        arguments.values.push_back(std::move(value));
      } else {
        arguments.named.emplace_back(node.names[i - first_named], std::move(value));
      }
    }
    line_ = node.line;
    return arguments;
  }

  Value call(const Node& node) {
    const Value callee = evaluate(node.children[0]);
    Arguments given = arguments(node);
    if (const auto* undefined = callee.as<Undefined>()) {
      throw Fault(fmt::format("calls {}, which is undefined", quoted(undefined->what, 40)));
    }
    if (!callee.function()) throw Fault(fmt::format("calls {}", callee.kind()));
    return callee.function()->call(std::move(given));
  }

  Value filter(const Node& node) {
    const Value input = evaluate(node.children[0]);
    return apply_filter(node.name, input, arguments(node), budget_);
  }

  Budget budget_;
  std::size_t most_output_;
  std::tm now_;
  Text output_;
  std::shared_ptr<Scope> scope_ = std::make_shared<Scope>();
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  int line_ = 1, depth_ = 0;
};

}  // namespace

}  // namespace jinja

JinjaTemplate::JinjaTemplate(std::string_view source)
    : body_(std::make_shared<const std::vector<jinja::Node>>(jinja::parse(source))) {}

Rendered JinjaTemplate::render(const RenderInput& input, const RenderLimits& limits) const {
  try {
    return jinja::Interpreter(input, limits).run(*body_);
  } catch (const jinja::Fault& fault) {
    throw Error("a conversation that {}", fault.what());
  }
}

}  // namespace staircase
