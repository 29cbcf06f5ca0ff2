// The main function of every test program, compiled once; and the reporter `lines`, by which tools/step check
// follows a run: one JSON object a line, each written at once.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstdio>
#include <ostream>
#include <sstream>
#include <string>

namespace {

std::string quoted(const char* text) {
  std::string result = "\"";
  for (; *text != '\0'; ++text) {
    const auto letter = static_cast<unsigned char>(*text);
    if (letter == '"' || letter == '\\') {
      result += {'\\', *text};
    } else if (letter < 0x20 || letter == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", letter);
      result += code;
    } else {
      result += *text;
    }
  }
  return result + '"';
}

std::string quoted(const doctest::String& text) {
  return quoted(text.c_str());
}

/// {"case": name, "line": n} begins a test case and {"end": failed checks, "green": bool} ends it. Between
/// them
/// {"failure": the expression, "values": what was compared, "file", "line", "logged": [..]} is a failed check
/// and {"exception": what, "crash": bool, "logged"} the end of the case; --list-test-cases gives {"known":
/// name}.
class Lines : public doctest::IReporter {
 public:
  explicit Lines(const doctest::ContextOptions& options) : out_(*options.cout) {}

  void report_query(const doctest::QueryData& query) override {
    for (unsigned i = 0; i < query.num_data; ++i)
      out_ << "{\"known\": " << quoted(query.data[i]->m_name) << "}\n";
    out_.flush();
  }
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& test) override {
    reported_ = 0;
    out_ << "{\"case\": " << quoted(test.m_name) << ", \"line\": " << test.m_line << "}" << std::endl;
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    out_ << "{\"end\": " << stats.numAssertsFailedCurrentTest
         << ", \"green\": " << (stats.failure_flags == 0 ? "true" : "false") << "}" << std::endl;
  }
  void test_case_exception(const doctest::TestCaseException& exception) override {
    out_ << "{\"exception\": " << quoted(exception.error_string)
         << ", \"crash\": " << (exception.is_crash ? "true" : "false") << logged() << "}" << std::endl;
  }
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& check) override {
    if (!check.m_failed || ++reported_ > kReported) return;
    out_ << "{\"failure\": " << quoted(check.m_expr)
         << ", \"values\": " << quoted(check.m_threw ? "threw: " + check.m_exception : check.m_decomp);
    place(check.m_file, check.m_line);
  }
  void log_message(const doctest::MessageData& message) override {
    if (message.m_severity == doctest::assertType::is_warn || ++reported_ > kReported) return;
    out_ << "{\"failure\": \"\", \"values\": " << quoted(message.m_string);
    place(message.m_file, message.m_line);
  }
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  static constexpr int kReported = 2;  ///< failures of a case; of a thousand more nobody learns anything

  void place(const char* file, int line) {
    out_ << ", \"file\": " << quoted(file) << ", \"line\": " << line << logged() << "}" << std::endl;
  }

  /// What INFO and CAPTURE have said; after an exception doctest keeps it elsewhere.
  static std::string logged() {
    std::string result;
    for (int i = 0; i < get_num_active_contexts(); ++i) {
      std::ostringstream text;
      get_active_contexts()[i]->stringify(&text);
      result += (result.empty() ? "" : ", ") + quoted(text.str().c_str());
    }
    for (int i = get_num_stringified_contexts(); result.empty() && i > 0; --i)
      result += (i == get_num_stringified_contexts() ? "" : ", ") + quoted(get_stringified_contexts()[i - 1]);
    return ", \"logged\": [" + result + "]";
  }

  std::ostream& out_;
  int reported_ = 0;
};

DOCTEST_REGISTER_REPORTER("lines", 1, Lines);

}  // namespace
