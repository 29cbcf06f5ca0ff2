// The main function of every test program, compiled once; and the reporter `lines`, by which tools/step check
// follows a run: one JSON object a line, each written at once.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

namespace {

using nlohmann::json;

/// Prints one JSON object per line:
///
///   {"case", "line"}                               begins a test case
///   {"failure": the expression, "values": the compared values, "file", "line", "logged"}   a failed check
///   {"exception", "crash", "file", "line", "checked", "logged"}   ends it; "line" is the last check's, or
///                                                  the case's if there was none ("checked" is false)
///   {"end": failed checks, "green"}                ends a test case
///   {"known": name}                                a test case, with --list-test-cases
class Lines : public doctest::IReporter {
 public:
  explicit Lines(const doctest::ContextOptions& options) : out_(*options.cout) {}

  void report_query(const doctest::QueryData& query) override {
    for (unsigned i = 0; i < query.num_data; ++i) tell(json::object({{"known", query.data[i]->m_name}}));
  }
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& test) override {
    reported_ = 0;
    place_ = {test.m_file.c_str(), static_cast<int>(test.m_line), false};
    tell({{"case", test.m_name}, {"line", test.m_line}});
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    tell({{"end", stats.numAssertsFailedCurrentTest}, {"green", stats.failure_flags == 0}});
  }
  void test_case_exception(const doctest::TestCaseException& exception) override {
    tell({{"exception", exception.error_string.c_str()},
          {"crash", exception.is_crash},
          {"file", place_.file},
          {"line", place_.line},
          {"checked", place_.checked},
          {"logged", logged()}});
  }
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& check) override {
    place_ = {check.m_file, check.m_line, true};
    if (check.m_failed) tell_failure(check.m_expr, values(check), check.m_file, check.m_line);
  }
  void log_message(const doctest::MessageData& message) override {
    if (message.m_severity == doctest::assertType::is_warn) return;
    tell_failure("", message.m_string, message.m_file, message.m_line);
  }
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  static constexpr int kReported = 2;  ///< failures of a case; a thousand more would teach nothing

  void tell(const json& event) {
    out_ << event.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  }

  /// What a check compared: values, or what was thrown with what was to be thrown.
  static doctest::String values(const doctest::AssertData& check) {
    using namespace doctest::assertType;
    const bool of_type = (check.m_at & is_throws_as) != 0, of_text = (check.m_at & is_throws_with) != 0;
    if (!of_type && !of_text && (check.m_at & is_throws) == 0)
      return check.m_threw ? "threw: " + check.m_exception : check.m_decomp;
    doctest::String want = of_type ? check.m_exception_type : "an exception";
    if (of_text) want += doctest::String(" with \"") + check.m_exception_string.c_str() + "\"";
    if (!check.m_threw) return "threw nothing, want " + want;
    return "threw " + doctest::String(of_type && !check.m_threw_as ? "another type: " : "") +
           check.m_exception + ", want " + want;
  }

  void tell_failure(const char* expression, const doctest::String& values, const char* file, int line) {
    if (++reported_ > kReported) return;
    tell({{"failure", expression},
          {"values", values.c_str()},
          {"file", file},
          {"line", line},
          {"logged", logged()}});
  }

  /// What INFO and CAPTURE have said; after an exception doctest keeps it elsewhere.
  static json logged() {
    json said = json::array();
    for (int i = 0; i < get_num_active_contexts(); ++i) {
      std::ostringstream text;
      get_active_contexts()[i]->stringify(&text);
      said.push_back(text.str());
    }
    if (!said.empty()) return said;
    for (int i = get_num_stringified_contexts(); i > 0; --i)
      said.push_back(get_stringified_contexts()[i - 1].c_str());
    return said;
  }

  /// What an exception lacks: how far the case has come.
  struct Place {
    const char* file = "";
    int line = 0;
    bool checked = false;  ///< the line of a check; otherwise that of the case
  };

  std::ostream& out_;
  int reported_ = 0;
  Place place_;
};

DOCTEST_REGISTER_REPORTER("lines", 1, Lines);

}  // namespace

/// The checks in the files of $STAIRCASE_FILES_LEFT_OUT are those of another commit (tools/test rest).
int main(int count, char** words) {
  doctest::Context context;
  if (const char* files = std::getenv("STAIRCASE_FILES_LEFT_OUT")) {
    context.addFilter("source-file-exclude", files);
  }
  context.applyCommandLine(count, words);
  return context.run();
}
