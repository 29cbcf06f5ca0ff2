// Declarations of options: which values are possible, and what the command line makes of them.
#include "common/base/options.h"

#include <doctest/doctest.h>

#include <cmath>

#include "common/base/quoted.h"
#include "common/decoding/sampling.h"
#include "common/program/command_line.h"
#include "tests/captured.h"
#include "tests/error_message.h"

namespace staircase {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

enum class Animal { kFox, kCrow };

/// Every kind of option.
struct Values {
  bool off = false, on = true;
  int count = 7;
  unsigned seed = 8;
  float share = 0.5f;
  std::optional<int> top = {}, most = 9;
  std::optional<float> nucleus = {};
  std::vector<int> lengths{1, 2};
  std::vector<std::string> words{"kept"}, texts;
  std::optional<int> automatic = 4;
  std::string file;
  Animal animal = Animal::kCrow;
};

void add_options(OptionSink& sink, Values& values) {
  sink.add("--off", &values.off, "help");
  sink.add("--on", &values.on, "help");
  sink.add("--count", &values.count, "help", between(1, 16));
  sink.add("--seed", &values.seed, "help");
  sink.add("--share", &values.share, "help", above_up_to(0, 1));
  sink.add("--top", &values.top, "help", at_least(1));
  sink.add("--most", &values.most, "help");
  sink.add("--nucleus", &values.nucleus, "help", above(0));
  sink.add("--lengths", &values.lengths, "help", at_least(1));
  sink.add("--words", &values.words, "help", at_least(1));
  sink.add("--texts", &values.texts, "help");
  sink.add("--automatic", NumberOrAuto{&values.automatic}, "help", at_least(1));
  sink.add("--file", Path{&values.file, "FILE"}, "help");
  sink.add("--animal", one_of(&values.animal, {{"fox", Animal::kFox}, {"crow", Animal::kCrow}}), "help");
}

/// What a command line makes of these arguments; its help goes to `help`.
Values parsed(std::vector<std::string> arguments, std::optional<std::string>* help = nullptr) {
  Values values;
  CommandLine line("A program.");
  add_options(line, values);
  arguments.insert(arguments.begin(), "program");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  const auto shown = line.parse(static_cast<int>(pointers.size()), pointers.data());
  if (help != nullptr) *help = shown;
  return values;
}

/// The message about these arguments; wrong usage every time.
std::string refused(const std::vector<std::string>& arguments) {
  try {
    parsed(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a range holds its ends, or all but its lower end, and never infinity or NaN") {
  CHECK(at_least(1).holds(1));
  CHECK(!at_least(1).holds(0));
  CHECK(!above(0).holds(0));
  CHECK(above(0).holds(1e-45));
  CHECK(above_up_to(0, 1).holds(1));
  CHECK(!above_up_to(0, 1).holds(0));
  CHECK(!above_up_to(0, 1).holds(std::nextafter(1.0, 2.0)));
  CHECK(between(-2, 2).holds(-2));
  CHECK(!between(-2, 2).holds(-2.001));
  for (const Range& range : {Range(), at_least(0), above(0), between(-1, 1), Range{.most = 3}}) {
    for (const double number : {kInfinity, -kInfinity, std::nan("")}) CHECK(!range.holds(number));
  }
  CHECK(!Range().is_bounded());
  CHECK(Range{.most = 3}.is_bounded());
}

TEST_CASE("a range is printed in words") {
  CHECK(at_least(1).text(true) == "1 or more");
  CHECK(at_least(0).text(false) == "a number of 0 or more");
  CHECK(above(0).text(false) == "a number above 0");
  CHECK(above_up_to(0, 1).text(false) == "above 0 and at most 1");
  CHECK(between(-2, 2.5).text(false) == "between -2 and 2.5");
  CHECK(between(1, 2147483647).text(true) == "between 1 and 2147483647");
  CHECK(Range{.most = 3}.text(false) == "at most 3");
  CHECK(Range().text(false) == "a number");
}

/// Whether a command line takes this value of an option that chooses tokens.
bool samples(const std::string& option, const std::string& value) {
  SamplingOptions options;
  CommandLine line("A program.");
  add_options(line, options);
  std::string words[] = {"program", "--do-sample", option + "=" + value};
  char* pointers[] = {words[0].data(), words[1].data(), words[2].data()};
  const Captured warnings(stderr);
  try {
    line.parse(3, pointers);
  } catch (const UsageError&) {
    return false;
  }
  return true;
}

TEST_CASE("the options that choose tokens take the ends of their ranges, and nothing beyond") {
  struct Ends {
    std::string option;
    std::vector<std::string> taken, refused;
  };
  for (const Ends& ends : {Ends{"--seed", {"0"}, {"-1"}},
                           {"--presence-penalty", {"-2", "2"}, {"-2.01", "2.01"}},
                           {"--frequency-penalty", {"-2", "2"}, {"-2.01", "2.01"}},
                           {"--repetition-penalty", {"0.01"}, {"0"}},
                           {"--temperature", {"0"}, {"-0.01"}},
                           {"--top-k", {"1"}, {"0"}},
                           {"--top-p", {"0.01", "1"}, {"0", "1.01"}},
                           {"--show-candidates", {"0"}, {"-1"}}}) {
    for (const std::string& value : ends.taken) CHECK_MESSAGE(samples(ends.option, value), ends.option);
    for (const std::string& value : ends.refused) CHECK_MESSAGE(!samples(ends.option, value), ends.option);
  }
}

/// Options that depend on each other, as a feature declares them.
struct Basket {
  int apples = 1, pears = 1;
  bool open = false;
};

void add_options(OptionSink& sink, Basket& basket) {
  sink.add("--apples", &basket.apples, "help", at_least(0));
  sink.add("--pears", &basket.pears, "help", at_least(0));
  sink.add("--open", &basket.open, "help");
  sink.warn_if([&basket] { return basket.open && basket.apples == 0; },
               "--open does nothing without --apples");
  sink.rule([&basket] {
    if (basket.apples > basket.pears) {
      throw UsageError("--apples is {}, but it must be at most {}, the value of --pears", basket.apples,
                       basket.pears);
    }
  });
  sink.refuse_if([&basket] { return basket.open && basket.pears == 3; }, "--open goes with no 3 --pears");
}

/// A number whose bounds are other numbers.
struct Shelf {
  int least = 2, books = 3, most = 4;
};

void add_options(OptionSink& sink, Shelf& shelf) {
  sink.add("--least", &shelf.least, "help");
  sink.add("--books", &shelf.books, "help");
  sink.add("--most", &shelf.most, "help");
  sink.require_at_least({"--books", &shelf.books}, {"--least", &shelf.least});
  sink.require_at_most({"--books", &shelf.books}, {"--most", &shelf.most});
}

/// The message about a basket or a shelf: an error, or the warnings on standard error.
template <typename Options = Basket>
std::string said(std::vector<std::string> arguments) {
  Options options;
  CommandLine line("A program.");
  add_options(line, options);
  arguments.insert(arguments.begin(), "program");
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  const Captured warnings(stderr);
  const std::string error =
      error_message([&] { line.parse(static_cast<int>(pointers.size()), pointers.data()); });
  return error + warnings.text();
}

TEST_CASE("a rule sees the values of all options, whatever their order on the command line") {
  CHECK(said({}) == "");
  CHECK(said({"--apples", "2"}) == "--apples is 2, but it must be at most 1, the value of --pears");
  CHECK(said({"--pears", "2", "--apples", "2"}) == "");
  CHECK(said({"--apples", "2", "--pears", "2"}) == "");
  CHECK(said({"--open", "--pears", "3"}) == "--open goes with no 3 --pears");
}

TEST_CASE("a number may be bounded by the values of other options, and may equal them") {
  CHECK(said<Shelf>({}) == "");
  CHECK(said<Shelf>({"--books", "2"}) == "");
  CHECK(said<Shelf>({"--books", "4"}) == "");
  CHECK(said<Shelf>({"--books", "1"}) == "--books is 1, but it must be 2 or more, the value of --least");
  CHECK(said<Shelf>({"--books", "5"}) == "--books is 5, but it must be at most 4, the value of --most");
  CHECK(said<Shelf>({"--least", "4"}) == "--books is 3, but it must be 4 or more, the value of --least");
  CHECK(said<Shelf>({"--most", "9", "--books", "9"}) == "");
}

TEST_CASE("a range is checked before a rule, and rules in the order of their declaration") {
  CHECK(said({"--apples", "2", "--pears", "-1"}) == "--pears is -1, but it must be 0 or more");
  CHECK(said({"--apples", "4", "--pears", "3", "--open"}) ==
        "--apples is 4, but it must be at most 3, the value of --pears");
}

TEST_CASE("a warning is printed only if nothing is refused") {
  const std::string warning = "warning: --open does nothing without --apples\n";
  CHECK(said({"--open", "--apples", "0"}) == warning);
  CHECK(said({"--open"}) == "");
  CHECK(said({"--open", "--apples", "0", "--pears", "3"}) == "--open goes with no 3 --pears");
}

TEST_CASE("the help is shown whatever the rules say") {
  CHECK(said({"--apples", "2", "--help"}) == "");
}

TEST_CASE("without arguments every option keeps its variable's value") {
  const Values values = parsed({});
  CHECK(!values.off);
  CHECK(values.on);
  CHECK(values.count == 7);
  CHECK(values.seed == 8);
  CHECK(values.share == 0.5f);
  CHECK(!values.top);
  CHECK(values.most == 9);
  CHECK(!values.nucleus);
  CHECK(values.lengths == std::vector<int>{1, 2});
  CHECK(values.words == std::vector<std::string>{"kept"});
  CHECK(values.automatic == 4);
  CHECK(values.file == "");
  CHECK(values.animal == Animal::kCrow);
}

TEST_CASE("an argument sets a variable of any kind") {
  CHECK(parsed({"--off"}).off);
  CHECK(!parsed({"--no-on"}).on);
  CHECK(parsed({"--on"}).on);
  CHECK(parsed({"--count", "16"}).count == 16);
  CHECK(parsed({"--count=1"}).count == 1);
  CHECK(parsed({"--seed", "4294967295"}).seed == 4294967295u);
  CHECK(parsed({"--share", "1e-3"}).share == 1e-3f);
  CHECK(parsed({"--top", "5"}).top == 5);
  CHECK(parsed({"--most", "-2147483648"}).most == -2147483647 - 1);
  CHECK(parsed({"--nucleus", "0.25"}).nucleus == 0.25f);
  CHECK(parsed({"--lengths", "3,4,5"}).lengths == std::vector<int>{3, 4, 5});
  CHECK(parsed({"--words", "a b", "--words", "c"}).words == std::vector<std::string>{"a b", "c"});
  CHECK(parsed({"--texts", ""}).texts == std::vector<std::string>{""});
  CHECK(!parsed({"--automatic", "auto"}).automatic);
  CHECK(parsed({"--automatic", "3"}).automatic == 3);
  CHECK(parsed({"--file", "a/b"}).file == "a/b");
  CHECK(parsed({"--animal", "fox"}).animal == Animal::kFox);
}

TEST_CASE("a value outside its range is refused with the option, the value and the range") {
  CHECK(refused({"--count", "0"}) == "--count is 0, but it must be between 1 and 16");
  CHECK(refused({"--count", "17"}) == "--count is 17, but it must be between 1 and 16");
  CHECK(refused({"--share", "0"}) == "--share is 0, but it must be above 0 and at most 1");
  CHECK(refused({"--share", "1.5"}) == "--share is 1.5, but it must be above 0 and at most 1");
  CHECK(refused({"--share", "nan"}) == "--share is nan, but it must be above 0 and at most 1");
  CHECK(refused({"--top", "0"}) == "--top is 0, but it must be 1 or more");
  CHECK(refused({"--nucleus", "-1"}) == "--nucleus is -1, but it must be a number above 0");
  CHECK(refused({"--nucleus", "inf"}) == "--nucleus is inf, but it must be a number above 0");
  CHECK(refused({"--nucleus", "-nan"}) == "--nucleus is -nan, but it must be a number above 0");
  CHECK(refused({"--lengths", "3,0"}) == "--lengths is 0, but it must be 1 or more");
  CHECK(refused({"--automatic", "0"}) == "--automatic is 0, but it must be 1 or more, or auto");
  CHECK(refused({"--words", "a", "--words", ""}) ==
        "--words is empty, but it must have at least one character");
  CHECK(refused({"--file", ""}) == "--file: the name is empty");
}

TEST_CASE("a text may be empty if an option permits it") {
  std::string text = "Be brief.";
  CommandLine line("A program.");
  line.add("--system", Path{&text, "TEXT", true}, "help");
  std::string words[] = {"program", "--system", ""};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data()};
  line.parse(3, arguments);
  CHECK(text == "");
}

TEST_CASE("a value of another kind is refused, and so is an unknown option") {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--count", "2.5"},
                                             {"--count", "x"},
                                             {"--count", ""},
                                             {"--share", "x"},
                                             {"--share", "0.5x"},
                                             {"--top", "auto"},
                                             {"--nucleus", ""},
                                             {"--lengths", "1,x"},
                                             {"--lengths", ","},
                                             {"--lengths", ""},
                                             {"--automatic", "Auto"},
                                             {"--automatic", ""},
                                             {"--animal", "Fox"},
                                             {"--animal", ""},
                                             {"--off=maybe"},
                                             {"--no-off"},
                                             {"--no-count", "3"},
                                             {"--count", "1", "--count", "2"},
                                             {"--file", "a", "--file", "b"},
                                             {"--count"},
                                             {"--top-k", "3"}}) {
    const std::string message = refused(wrong);
    CAPTURE(wrong[0]);
    CAPTURE(message);
    CHECK(says(message, wrong[0].substr(0, wrong[0].find('=')), "--help lists the options"));
  }
}

TEST_CASE("a number is spelled in decimals, with nothing around it") {
  for (const std::string good : {"0.25", ".25", "25e-2", "2.5E-1", "0.0025e+2"}) {
    CAPTURE(good);
    CHECK(parsed({"--share", good}).share == 0.25f);
  }
  for (const std::string bad :
       {"+0.25", " 0.25", "0.25 ", "0x1p-2", "0X1P-2", "-0x1p-2", "0.25f", "0,25", "1e", "."}) {
    CAPTURE(bad);
    CHECK(says(refused({"--share=" + bad}), "--share is ", bad,
               "but it must be a number above 0 and at most 1 (--help lists the options)"));
  }
}

TEST_CASE("a value beyond its type is refused with the range of the option, which ends where the type does") {
  CHECK(refused({"--count", "2147483648"}) == "--count is 2147483648, but it must be between 1 and 16");
  CHECK(refused({"--count", "-99999999999"}) == "--count is -99999999999, but it must be between 1 and 16");
  CHECK(refused({"--top", "99999999999"}) == "--top is 99999999999, but it must be between 1 and 2147483647");
  CHECK(refused({"--top", "-99999999999"}) == "--top is -99999999999, but it must be 1 or more");
  CHECK(refused({"--seed", "-1"}) == "--seed is -1, but it must be between 0 and 4294967295");
  CHECK(refused({"--seed", "4294967296"}) == "--seed is 4294967296, but it must be between 0 and 4294967295");
  CHECK(refused({"--automatic", "99999999999"}) ==
        "--automatic is 99999999999, but it must be between 1 and 2147483647, or auto");
  CHECK(refused({"--share", "1e39"}) == "--share is 1e39, but it must be above 0 and at most 1");
  CHECK(refused({"--nucleus", "1e39"}) == "--nucleus is 1e39, but it must be above 0 and at most 3.4e+38");
  CHECK(refused({"--nucleus", "-1e39"}) == "--nucleus is -1e39, but it must be a number above 0");
  CHECK(refused({"--share", "1e-60"}) ==
        "--share is 1e-60, but a number so close to 0 must be 0 or at least 1.4e-45");
}

TEST_CASE("an unknown argument is reported in our own words, with the value in quotes if it needs them") {
  const std::string help = " (--help lists the options)";
  CHECK(refused({"--count", "a b"}) ==
        "--count is \"a b\", but it must be a whole number between 1 and 16" + help);
  CHECK(refused({"--top", ""}) == "--top is \"\", but it must be a whole number of 1 or more" + help);
  CHECK(refused({"--most", "x"}) == "--most is x, but it must be a whole number" + help);
  CHECK(refused({"--nucleus", "x"}) == "--nucleus is x, but it must be a number above 0" + help);
  CHECK(refused({"--automatic", "x"}) ==
        "--automatic is x, but it must be a whole number of 1 or more, or auto" + help);
  CHECK(refused({"--lengths", "1,x"}) == "--lengths is x, but it must be a whole number of 1 or more" + help);
  CHECK(refused({"--animal", "Fox"}) == "--animal is Fox, but it must be one of fox, crow" + help);
  CHECK(refused({"--count"}) == "--count needs a value" + help);
  CHECK(refused({"--count", "1", "--count", "2"}) ==
        "--count is given 2 times, but it takes only one value" + help);
  CHECK(refused({"--off=maybe"}) == "--off=maybe: a flag is on or off, and takes no value" + help);
  std::vector<std::string> many(12, "x");
  CHECK(says(refused(many), "not understood: x x x x x x x x x x and 2 more ("));
}

TEST_CASE("no value of an option takes a control character into the message, or makes it long") {
  const std::string red = "\x1b[31m\n\x7f\xc2\x9b", long_one(5000, 'x');
  for (const std::string option : {"--count", "--seed", "--share", "--top", "--most", "--nucleus",
                                   "--lengths", "--automatic", "--animal", "--off", "--no-option", ""}) {
    for (const std::string& value : {red, long_one}) {
      const std::string message = refused({option + "=" + value});
      CAPTURE(message);
      CHECK(message.size() < 300);
      if (value == long_one) continue;
      CHECK(contains(message, "\\u001b[31m\\n\\u007f\\u009b"));
      CHECK(message == printable(message));
    }
  }
}

TEST_CASE("a product that an int cannot hold is refused") {
  CHECK(product(0, 2147483647) == 0);
  CHECK(product(2147483647, 1) == 2147483647);
  CHECK(product(46340, 46341) == 2147441940);
  CHECK(error_message([] { product(2, 2147483647, "texts"); }) ==
        "2 times 2147483647 texts is too much: the limit is 2147483647");
  CHECK(error_message([] { product(65536, 65536); }) ==
        "65536 times 65536 is too much: the limit is 2147483647");
  CHECK_THROWS_AS(product(std::int64_t{1} << 62, 4), UsageError);
}

TEST_CASE("a command line returns what was typed for an option, and otherwise its value") {
  CommandLine line("A program.");
  std::vector<std::string> words;
  int count = 7;
  bool on = true;
  line.add("--words", &words, "help");
  line.add("--count", &count, "help");
  line.add("--switch", &on, "help");
  std::vector<std::string> arguments{"program", "--words", "a", "--words", "b c"};
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  line.parse(static_cast<int>(pointers.size()), pointers.data());
  CHECK(line.values() == OptionTexts{{"--words", "a,b c"}, {"--count", "7"}, {"--switch", "true"}});
}

TEST_CASE("a default that comes later applies to what was not typed, and the help shows it") {
  struct Values {
    bool samples = false, ends = false;
    int count = 7;
    float share = 0.5f;
    std::optional<int> top;
  };
  const auto parse = [](std::vector<std::string> arguments, std::string* help = nullptr,
                        OptionTexts* texts = nullptr) {
    Values values;
    CommandLine line("A program.");
    line.add("--count", &values.count, "help", at_least(1));
    line.add("--share", &values.share, "help", between(0, 1));
    line.add("--top", &values.top, "help", at_least(1));
    line.add("--samples", &values.samples, "help");
    line.add("--ends", &values.ends, "help");
    line.make_negatable("--samples");
    line.make_negatable("--ends");
    arguments.insert(arguments.begin(), "program");
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    const auto shown = line.parse(static_cast<int>(pointers.size()), pointers.data(), [&] {
      CHECK(line.set_default("--count", "9"));
      CHECK(line.set_default("--share", "0.25"));
      CHECK(line.set_default("--top", "3"));
      CHECK(line.set_default("--samples", "true"));
      CHECK_FALSE(line.set_default("--unknown", "3"));
    });
    if (help && shown) *help = *shown;
    if (texts) *texts = line.values();
    return values;
  };
  const auto tuple = [](const Values& values) {
    return std::tuple(values.samples, values.ends, values.count, values.top);
  };
  CHECK(tuple(parse({})) == std::tuple(true, false, 9, std::optional(3)));
  CHECK(parse({"--share", "0.75"}).share == 0.75f);
  CHECK(tuple(parse({"--no-samples", "--ends", "--count", "2", "--top", "5"})) ==
        std::tuple(false, true, 2, std::optional(5)));
  CHECK(tuple(parse({"--samples", "--no-ends"})) == std::tuple(true, false, 9, std::optional(3)));
  std::string help;
  parse({"--help", "--count", "4"}, &help);
  for (const std::string words : {"--count N (1 or more)=9", "--share X (between 0 and 1)=0.25",
                                  "--top N (1 or more)=3", "--samples,--no-samples{false}=true"}) {
    CAPTURE(help);
    CHECK(help.find(words) != std::string::npos);
  }
  bool flag = false;
  float share = 0.5f;
  CommandLine line("A program.");
  line.add("--flag", &flag, "help");
  line.add("--share", &share, "help", between(0, 1));
  CHECK(error_message([&] { line.set_default("--flag", "1"); }) ==
        "--flag is 1, but it must be true or false");
  std::vector<std::string> words{"program"};
  const auto refusal = [&] {
    CommandLine other("A program.");
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    return error_message([&] { other.parse(static_cast<int>(pointers.size()), pointers.data()); });
  };
  const std::string advice = " (a text of several words needs quotation marks; --help lists the options)";
  std::string shown;
  for (const std::string word : {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}) {
    words.push_back(word);
    shown += " " + word;
    CHECK(refusal() == "not understood:" + shown + advice);
  }
  words.push_back("k");
  CHECK(refusal() == "not understood:" + shown + " and 1 more" + advice);
  for (const bool value : {true, false}) {
    CHECK(line.set_default("--flag", value ? "true" : "false"));
    CHECK(flag == value);
  }
  CHECK(error_message([&] { line.set_default("--share", "2"); }) ==
        "--share is 2, but it must be between 0 and 1");
  OptionTexts texts;
  parse({"--no-ends"}, nullptr, &texts);
  CHECK(
      texts ==
      OptionTexts{
          {"--count", "9"}, {"--share", "0.25"}, {"--top", "3"}, {"--samples", "true"}, {"--ends", "false"}});
}

TEST_CASE("the help has each option with its kind of value, its range and its current value") {
  std::optional<std::string> help;
  parsed({"--help"}, &help);
  REQUIRE(help);
  for (const std::string words :
       {"--off ", "--on,--no-on{false}", "--count N (between 1 and 16)=7", "--seed N=8",
        "--share X (above 0 and at most 1)=0.5", "--top N (1 or more) ", "--most N=9",
        "--nucleus X (a number above 0)\n", "--lengths N,N (1 or more)=1,2", "--words TEXT ",
        "--automatic N|auto (1 or more)=4", "--file FILE ", "--animal fox|crow=crow"}) {
    CAPTURE(words);
    CAPTURE(*help);
    CHECK(help->find(words) != std::string::npos);
  }
}

}  // namespace
}  // namespace staircase
