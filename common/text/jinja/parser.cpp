// Recursive descent: a function for each level of precedence, from "a if b else c" down to names and
// literals.
#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "common/base/error.h"
#include "common/base/quoted.h"
#include "common/text/jinja/lexer.h"
#include "common/text/jinja/text.h"
#include "common/text/jinja/tree.h"

namespace staircase::jinja {

namespace {

using Kind = Token::Kind;
using NodeKind = Node::Kind;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  std::vector<Node> run() { return statements({}); }

 private:
  /// Counts how deeply the parser itself nests.
  struct Level {
    explicit Level(Parser& parser) : parser(parser) {
      if (++parser.level_ > kMostNesting) parser.fail("is nested too deeply");
    }
    ~Level() { --parser.level_; }
    Parser& parser;
  };

  // Tokens.

  const Token& now() const { return tokens_[at_]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is(Kind kind, std::string_view text) const { return now().kind == kind && now().text == text; }
  bool is_sign(std::string_view text) const { return is(Kind::kOperator, text); }
  bool is_word(std::string_view text) const { return is(Kind::kName, text); }

  bool is_word_of(std::initializer_list<std::string_view> words) const {
    return std::any_of(words.begin(), words.end(), [&](auto word) { return is_word(word); });
  }

  bool take(Kind kind, std::string_view text) {
    if (!is(kind, text)) return false;
    next();
    return true;
  }
  bool take_sign(std::string_view text) { return take(Kind::kOperator, text); }
  bool take_word(std::string_view text) { return take(Kind::kName, text); }

  void expect_sign(std::string_view text) {
    if (!take_sign(text)) fail(fmt::format("has {} where \"{}\" is expected", shown(now()), text));
  }
  void expect_word(std::string_view text) {
    if (!take_word(text)) fail(fmt::format("has {} where \"{}\" is expected", shown(now()), text));
  }
  void expect_end(Kind kind) {
    if (now().kind != kind) fail(fmt::format("has {} where the tag should end", shown(now())));
    next();
  }
  std::string expect_name() {
    if (now().kind != Kind::kName) fail(fmt::format("has {} where a name is expected", shown(now())));
    return next().text;
  }

  /// Reads the name of a variable to set.
  std::string expect_target() {
    if (is_word_of({"true", "True", "false", "False", "none", "None"}))
      fail(fmt::format("sets {}, which is a constant", shown(now())));
    return expect_name();
  }

  static std::string shown(const Token& token) {
    switch (token.kind) {
      case Kind::kText:
        return "text";
      case Kind::kOutputBegin:
        return "\"{{\"";
      case Kind::kOutputEnd:
        return "\"}}\"";
      case Kind::kBlockBegin:
        return "\"{%\"";
      case Kind::kBlockEnd:
        return "\"%}\"";
      case Kind::kEnd:
        return "its end";
      default:
        return quoted(token.text, 40);
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("the template's line {} {}", now().line, what);
  }

  // The tree.

  Node node(NodeKind kind, std::string name = "", std::vector<Node> children = {}) const {
    Node made;
    made.kind = kind;
    made.line = children.empty() ? now().line : children.front().line;
    made.name = std::move(name);
    made.children = std::move(children);
    return measured(std::move(made));
  }

  template <typename... Nodes>
  Node node_of(NodeKind kind, std::string name, Nodes... children) const {
    std::vector<Node> all;
    (all.push_back(std::move(children)), ...);
    return node(kind, std::move(name), std::move(all));
  }

  /// Checks the depth of a tree: a chain of operators makes a deep tree without nesting the parser.
  Node measured(Node made) const {
    for (const auto* nodes : {&made.children, &made.body, &made.otherwise}) {
      for (const Node& below : *nodes) made.depth = std::max(made.depth, below.depth + 1);
    }
    if (made.depth > kMostNesting) fail("is nested too deeply");
    return made;
  }

  Node literal(Value value) const {
    Node made = node(NodeKind::kLiteral);
    made.value = std::move(value);
    return made;
  }

  // Statements.

  /// Reads statements up to a tag that begins with one of `ends`, which is then the current token.
  std::vector<Node> statements(std::initializer_list<std::string_view> ends) {
    const Level level(*this);
    std::vector<Node> body;
    while (now().kind != Kind::kEnd) {
      if (now().kind == Kind::kText) {
        body.push_back(node(NodeKind::kText));
        body.back().value = Value(Text::of_template(next().text));
      } else if (now().kind == Kind::kOutputBegin) {
        next();
        body.push_back(node_of(NodeKind::kOutput, "", tuple_or(&Parser::expression)));
        expect_end(Kind::kOutputEnd);
      } else {
        next();
        if (is_word_of(ends)) return body;
        body.push_back(statement());
      }
    }
    return body;
  }

  /// Reads the statements up to {% end %}.
  std::vector<Node> block(std::string_view end) {
    expect_end(Kind::kBlockEnd);
    std::vector<Node> body = statements({end});
    expect_word(end);
    expect_end(Kind::kBlockEnd);
    return body;
  }

  Node statement() {
    const int line = now().line;
    const std::string tag = expect_name();
    Node made = node(NodeKind::kBreak);
    if (tag == "if") {
      made = if_statement();
    } else if (tag == "for") {
      made = for_statement();
    } else if (tag == "set") {
      made = set_statement();
    } else if (tag == "macro") {
      made = macro_statement();
    } else if (tag == "filter") {
      made = node_of(NodeKind::kFilterBlock, "", filters(node(NodeKind::kName), true));
      made.body = block("endfilter");
    } else if (tag == "generation") {
      made = node(NodeKind::kScope);
      made.body = block("endgeneration");
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail(fmt::format("uses \"{}\" outside of a loop", tag));
      made = node(tag == "break" ? NodeKind::kBreak : NodeKind::kContinue);
      expect_end(Kind::kBlockEnd);
    } else {
      --at_;
      fail(fmt::format("uses the tag {}, which is not known here", quoted(tag, 40)));
    }
    made.line = line;
    return measured(std::move(made));
  }

  Node if_statement() {
    const Level level(*this);
    Node made = node_of(NodeKind::kIf, "", or_expression());
    expect_end(Kind::kBlockEnd);
    made.body = statements({"elif", "else", "endif"});
    if (take_word("elif")) {
      made.otherwise.push_back(if_statement());
      return measured(std::move(made));
    }
    if (take_word("else")) {
      made.otherwise = block("endif");
      return made;
    }
    expect_word("endif");
    expect_end(Kind::kBlockEnd);
    return made;
  }

  Node for_statement() {
    Node made = node(NodeKind::kFor);
    if (is_word("loop")) fail("sets \"loop\", which the loop itself sets");
    made.names = targets();
    expect_word("in");
    made.children.push_back(tuple_or(&Parser::or_expression));
    if (take_word("if")) made.children.push_back(expression());
    expect_end(Kind::kBlockEnd);
    ++loops_;
    made.body = statements({"else", "endfor"});
    --loops_;
    if (take_word("else")) {
      made.otherwise = block("endfor");
      return made;
    }
    expect_word("endfor");
    expect_end(Kind::kBlockEnd);
    return made;
  }

  Node set_statement() {
    Node made = node(NodeKind::kSet);
    made.names = targets();
    if (made.names.size() == 1 && take_sign(".")) made.name = expect_name();
    if (take_sign("=")) {
      made.children.push_back(tuple_or(&Parser::expression));
      expect_end(Kind::kBlockEnd);
      return made;
    }
    if (made.names.size() > 1) expect_sign("=");
    made.kind = NodeKind::kSetBlock;
    made.children.push_back(filters(node(NodeKind::kName), false));
    made.body = block("endset");
    return made;
  }

  Node macro_statement() {
    Node made = node(NodeKind::kMacro, expect_name());
    expect_sign("(");
    while (!take_sign(")")) {
      if (!made.names.empty()) expect_sign(",");
      made.names.push_back(expect_target());
      if (take_sign("=")) {
        made.children.push_back(expression());
      } else if (!made.children.empty()) {
        fail("has a parameter without a default after one with a default");
      }
    }
    const int loops = std::exchange(loops_, 0);
    made.body = block("endmacro");
    loops_ = loops;
    return made;
  }

  /// Reads "a", "a, b" or "(a, b)".
  std::vector<std::string> targets() {
    const bool in_parentheses = take_sign("(");
    std::vector<std::string> names = {expect_target()};
    while (take_sign(",")) names.push_back(expect_target());
    if (in_parentheses) expect_sign(")");
    return names;
  }

  // Expressions, from the loosest to the tightest.

  /// Reads an expression, or several with commas between them: a tuple.
  Node tuple_or(Node (Parser::*element)()) {
    Node first = (this->*element)();
    if (!is_sign(",")) return first;
    Node made = node_of(NodeKind::kTuple, "", std::move(first));
    while (take_sign(",")) {
      if (now().kind == Kind::kBlockEnd || now().kind == Kind::kOutputEnd || is_sign(")")) break;
      made.children.push_back((this->*element)());
    }
    return measured(std::move(made));
  }

  Node expression() {
    const Level level(*this);
    Node made = or_expression();
    while (take_word("if")) {
      made = node_of(NodeKind::kChoice, "", or_expression(), std::move(made));
      if (take_word("else")) made.children.push_back(expression());
      made = measured(std::move(made));
    }
    return made;
  }

  Node or_expression() {
    Node made = and_expression();
    while (take_word("or")) made = node_of(NodeKind::kOr, "", std::move(made), and_expression());
    return made;
  }

  Node and_expression() {
    Node made = not_expression();
    while (take_word("and")) made = node_of(NodeKind::kAnd, "", std::move(made), not_expression());
    return made;
  }

  Node not_expression() {
    const Level level(*this);
    if (take_word("not")) return node_of(NodeKind::kNot, "", not_expression());
    return comparison();
  }

  Node comparison() {
    Node made = node_of(NodeKind::kCompare, "", sum());
    while (true) {
      std::string sign = now().text;
      if (is_word("not") && tokens_[at_ + 1].kind == Kind::kName && tokens_[at_ + 1].text == "in") {
        next();
        sign = "not in";
      } else if (!is_word("in") && !is_sign("==") && !is_sign("!=") && !is_sign("<") && !is_sign("<=") &&
                 !is_sign(">") && !is_sign(">=")) {
        break;
      }
      next();
      made.names.push_back(sign);
      made.children.push_back(sum());
    }
    if (made.names.empty()) return Node(std::move(made.children.front()));
    return measured(std::move(made));
  }

  /// Reads one or more operands with any of `signs` between them, grouped from left to right.
  Node chain(Node (Parser::*operand)(), std::initializer_list<std::string_view> signs) {
    Node made = (this->*operand)();
    while (true) {
      const auto sign = std::find_if(signs.begin(), signs.end(), [&](auto text) { return take_sign(text); });
      if (sign == signs.end()) return made;
      made = node_of(NodeKind::kBinary, std::string(*sign), std::move(made), (this->*operand)());
    }
  }

  Node sum() { return chain(&Parser::concatenation, {"+", "-"}); }
  Node concatenation() { return chain(&Parser::product, {"~"}); }
  Node product() { return chain(&Parser::filtered, {"*", "//", "/", "%"}); }

  /// The minus belongs to the operand before the filters: -1|abs is (-1)|abs.
  Node filtered() { return filters(postfix(is_sign("-") || is_sign("+") ? with_sign() : primary()), false); }

  Node with_sign() {
    const Level level(*this);
    if (!is_sign("-") && !is_sign("+")) return postfix(primary());
    std::string sign = next().text;
    return node_of(NodeKind::kSigned, std::move(sign), with_sign());
  }

  Node primary() {
    const Level level(*this);
    const Token& token = now();
    switch (token.kind) {
      case Kind::kName:
        return name();
      case Kind::kString: {
        std::string text;
        while (now().kind == Kind::kString) text += next().text;
        return literal(Value(Text::of_template(text)));
      }
      case Kind::kInteger:
        return number<std::int64_t>();
      case Kind::kFloat:
        return number<double>();
      default:
        break;
    }
    if (take_sign("(")) {
      Node made = is_sign(")") ? node(NodeKind::kTuple) : tuple_or(&Parser::expression);
      expect_sign(")");
      return made;
    }
    if (take_sign("[")) return list();
    if (take_sign("{")) return dict();
    fail(fmt::format("has {} where an expression is expected", shown(token)));
  }

  Node name() {
    std::string text = next().text;
    if (text == "true" || text == "True") return literal(Value(true));
    if (text == "false" || text == "False") return literal(Value(false));
    if (text == "none" || text == "None") return literal(Value(None()));
    return node(NodeKind::kName, std::move(text));
  }

  template <typename Number>
  Node number() {
    const std::string text = next().text;
    Number value{};
    bool fits = false;
    if constexpr (std::is_same_v<Number, double>) {
      const auto number = decimal(text);
      fits = number.has_value();
      value = number.value_or(0.0);
    } else {
      fits = std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc();
    }
    if (!fits) fail(fmt::format("has the number {}, which is too large", quoted(text, 40)));
    return literal(Value(value));
  }

  Node list() {
    Node made = node(NodeKind::kList);
    while (!take_sign("]")) {
      if (!made.children.empty()) expect_sign(",");
      if (take_sign("]")) break;
      made.children.push_back(expression());
    }
    return measured(std::move(made));
  }

  Node dict() {
    Node made = node(NodeKind::kDict);
    while (!take_sign("}")) {
      if (!made.children.empty()) expect_sign(",");
      if (take_sign("}")) break;
      made.children.push_back(expression());
      expect_sign(":");
      made.children.push_back(expression());
    }
    return measured(std::move(made));
  }

  /// Reads attributes, items and calls after `made`.
  Node postfix(Node made) {
    while (true) {
      if (take_sign(".")) {
        if (now().kind == Kind::kInteger) {
          Node index = number<std::int64_t>();
          made = node_of(NodeKind::kItem, "", std::move(made), std::move(index));
        } else {
          made = node_of(NodeKind::kAttribute, expect_name(), std::move(made));
        }
      } else if (take_sign("[")) {
        made = item(std::move(made));
      } else if (take_sign("(")) {
        made = arguments(node_of(NodeKind::kCall, "", std::move(made)));
      } else {
        return made;
      }
    }
  }

  Node item(Node made) {
    std::vector<Node> parts;
    bool after_colon = true;  // whether a part may come here
    bool slice = false;
    while (!take_sign("]")) {
      if (take_sign(":")) {
        slice = true;
        if (after_colon) parts.push_back(literal(Value(None())));
        after_colon = true;
      } else if (after_colon) {
        parts.push_back(expression());
        after_colon = false;
      } else {
        expect_sign("]");
      }
    }
    if (!slice && parts.empty()) fail("has an index without a value");
    if (!slice) return node_of(NodeKind::kItem, "", std::move(made), std::move(parts.front()));
    if (parts.size() > 3) fail("has a slice of more than three parts");
    while (parts.size() < 3) parts.push_back(literal(Value(None())));
    return node_of(NodeKind::kSlice, "", std::move(made), std::move(parts[0]), std::move(parts[1]),
                   std::move(parts[2]));
  }

  /// Reads arguments in parentheses after `made`, which gets them as children.
  Node arguments(Node made) {
    bool first = true;
    while (!take_sign(")")) {
      if (!std::exchange(first, false)) expect_sign(",");
      if (take_sign(")")) break;
      const Token& after = tokens_[std::min(at_ + 1, tokens_.size() - 1)];
      if (now().kind == Kind::kName && after.kind == Kind::kOperator && after.text == "=") {
        made.names.push_back(next().text);
        next();
      } else if (!made.names.empty()) {
        fail("has an argument without a name after one with a name");
      }
      made.children.push_back(expression());
      if (made.children.size() > kMostNesting) fail("nests its arguments too deeply");
    }
    return measured(std::move(made));
  }

  /// Reads filters and tests after `made`. After {% filter, the first filter has no "|".
  Node filters(Node made, bool begins) {
    while (true) {
      if (begins || take_sign("|")) {
        begins = false;
        made = node_of(NodeKind::kFilter, expect_name(), std::move(made));
        if (take_sign("(")) made = arguments(std::move(made));
      } else if (take_word("is")) {
        made = test(std::move(made));
      } else if (take_sign("(")) {
        made = arguments(node_of(NodeKind::kCall, "", std::move(made)));
      } else {
        return made;
      }
    }
  }

  Node test(Node made) {
    const bool negated = take_word("not");
    made = node_of(NodeKind::kTest, expect_name(), std::move(made));
    const Kind kind = now().kind;
    if (take_sign("(")) {
      made = arguments(std::move(made));
      if (!made.names.empty()) fail("gives a test an argument by name");
    } else if (kind == Kind::kString || kind == Kind::kInteger || kind == Kind::kFloat || is_sign("[") ||
               is_sign("{") ||
               (kind == Kind::kName && !is_word_of({"else", "or", "and", "if", "is", "in", "not"}))) {
      made.children.push_back(postfix(primary()));
      made = measured(std::move(made));
    }
    return negated ? node_of(NodeKind::kNot, "", std::move(made)) : std::move(made);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int level_ = 0, loops_ = 0;
};

}  // namespace

std::vector<Node> parse(std::string_view source) {
  return Parser(source).run();
}

}  // namespace staircase::jinja
