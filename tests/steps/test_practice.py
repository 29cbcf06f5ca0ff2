"""Plays the learner: the messages of a practice folder from the outline to green, and about the mistakes that people
make.

A sample is tried, another one for each commit: one step with the mistakes that it invites, and a fifth of the mistakes
in step 02. One of the steps that the commit changes is tried, too. With STAIRCASE_ALL_STEPS=1 (`tools/test --all`) all
are tried: two steps at a time then, each with one compiler. Commands that name no temporary folder let a compiler cache
answer when nothing has changed since."""

import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support import BUILD, ROOT, STEPS, Scratch, call, snapshot

from chosen import ALL, chosen, commit, touched
from mistakes import MISTAKES, planted
from step_commands.compiling import PRODUCTS, PROGRAM, folder_of_headers, project_commands, reason, with_flags
from step_commands.running import program_cases

# Whose outline, the code of the step before, reads a key head for each query head: beyond the end, as the check
# reports.
READS_BEYOND = "85-grouped-queries"



def sample():
    draws = random.Random(commit())
    any_step, changed = draws.choice(STEPS), [step for step in STEPS if touched(f"steps/{step.name}")]
    return list({any_step, *(draws.sample(changed, 1) if changed else [])})


TRIED = STEPS if ALL else sample()


class Played(Scratch):
    def check(self, folder, *options, **more):
        done = call(ROOT / "tools/step", "check", folder, "--build", BUILD, "--jobs", 1, *options, **more)
        self.assertNotIn("Traceback", done.stderr)
        return done.returncode, done.stdout + done.stderr


class EveryStep(Played):
    def play(self, step):
        """(step, [(what the learner did, the status of `check`, what it said)], the seconds of the last check)"""
        folder = self.folder / step.name
        said = [("practice", 0, self.step("practice", step.number, folder)), ("outline", *self.check(folder))]
        left = [name for name in step.lesson() if (folder / name).read_bytes() != step.lesson()[name].read_bytes()]
        for name in left:
            shutil.copyfile(step.lesson()[name], folder / name)
            start = time.monotonic()
            said.append((name, *self.check(folder)))
        seconds = time.monotonic() - start
        shutil.rmtree(folder)
        return step, said, seconds

    def survivors(self, step):
        """(step, what `check` says while none of its mistakes is switched on, the mistakes that are green)"""
        folder = self.folder / f"mistakes-{step.number}"
        self.step("practice", step.number, folder)
        for name, path in step.lesson().items():
            shutil.copyfile(path, folder / name)
        for name, text in planted(step.lesson(), MISTAKES[step.name]).items():
            (folder / name).write_text(text)
        said = self.check(folder)
        green = [what for number, (what, *_) in enumerate(MISTAKES[step.name], 1)
                 if said[0] == 0 and self.is_green(folder, number)]
        shutil.rmtree(folder)
        return step, said, green

    def is_green(self, folder, mistake):
        process = subprocess.Popen(["build/test", "--abort-after=1"], cwd=folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                                   env={**os.environ, "STAIRCASE_MISTAKE": str(mistake)})
        try:
            return process.wait(timeout=120) == 0
        except subprocess.TimeoutExpired:  # it waits for ever, or never ends: `check` says so
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False

    def test_mistakes_that_a_step_invites_make_its_check_red(self):
        with ThreadPoolExecutor(2) as pool:
            for step, (status, said), green in pool.map(self.survivors, TRIED):
                with self.subTest(step.name):
                    self.assertEqual(status, 0, said)
                    self.assertEqual(green, [], "the check is green although")

    def test_from_the_outline_to_green(self):
        print(f"\n{'':30} seconds of the last check")
        with ThreadPoolExecutor(2) as pool:
            for step, said, seconds in pool.map(self.play, TRIED):
                print(f"{step.name:30} {seconds:6.1f}")
                with self.subTest(step.name):
                    (_, _, made), (_, status, outline), *written = said
                    self.assertRegex(made, r"files +(new|change): ")
                    self.assertEqual(status, 1, outline)
                    self.assertRegex(outline, r"RED: (CORE GREEN.*\n)?\d+ of \d+ checks red; begin with: ")
                    self.assertIn("Your turn in ", outline)
                    for what, status, text in said[1:]:
                        if what == "outline" and step.name == READS_BEYOND:
                            text = text.replace("crashed: the standard library refuses std::vector::operator[]", "", 1)
                        for words in ("does not compile", "does not fit your code", "Traceback", "crashed", "{?}",
                                      str(2**64 - 1)):
                            self.assertNotIn(words, text, what)
                    what, status, green = written[-1]
                    self.assertEqual(status, 0, green)
                    self.assertIn(f"GREEN: {step.name} is done", green)
                    self.assertNotIn("compare ", green, "the solution differs from itself")

    def test_the_promises_of_programs_are_told_from_the_core(self):
        for step in STEPS:
            with self.subTest(step.name):
                text = (step.folder / "test.cpp").read_text()
                found = program_cases(text)
                names = ["".join(re.findall(r'"((?:[^"\\]|\\.)*)"', name)).replace('\\"', '"')
                         for name in re.findall(r'^TEST_CASE\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)[)*]', text, re.MULTILINE)]
                self.assertLessEqual(found, set(names))
                self.assertEqual(bool(found), "STAIRCASE_STEP_PROGRAM" in text)
                self.assertTrue(set(names) - found, "the core's success cannot be reported")
                self.assertEqual(set(names[len(names) - len(found):]), found, "the program is built last")

    def test_the_name_of_a_helper_in_a_text_is_no_call_of_it(self):
        text = '''int rows(int x) {\n  return STAIRCASE_STEP_PROGRAM != nullptr;\n}

TEST_CASE("the core") {\n  CHECK(told["rows"] == 1);\n}

TEST_CASE("the program") {\n  CHECK(rows(1) == 1);\n}

TEST_CASE("the slow program" * doctest::skip(kSanitized)) {\n  CHECK(rows(2) == 1);\n}

TEST_CASE("more of the core") {\n  CHECK(true);\n}

TEST_CASE(
    "a name on "
    "two \\"lines\\"") {\n  CHECK(rows(3) == 1);\n}
'''
        self.assertEqual(program_cases(text), {"the program", "the slow program", 'a name on two "lines"'})

    def test_our_flags_stand_behind_the_compiler_although_a_cache_stands_before_it(self):
        for before in (["c++"], ["ccache", "c++"], ["/usr/bin/ccache", "clang++"]):
            words = with_flags([*before, "-Ia", "-std=c++20"], ["-O1"], "headers")
            self.assertEqual(words[:len(before) + 2], [*before, "-Iheaders", "-Ia"])


class Mistakes(Played):
    """Step 02 with its solution, and then a mistake."""

    @classmethod
    def setUpClass(cls):
        cls.solved = STEPS[1]

    def setUp(self):
        super().setUp()
        if not chosen(self.id(), 5):
            self.skipTest("the sample of another commit has it")
        self.mine = self.folder / "a folder"
        self.step("practice", 2, self.mine)
        for name, path in self.solved.lesson().items():
            shutil.copyfile(path, self.mine / name)

    def plant(self, name, old, new):
        text = (self.mine / name).read_text()
        self.assertIn(old, text)
        (self.mine / name).write_text(text.replace(old, new))

    def red(self, *options):
        status, said = self.check(self.mine, *options)
        self.assertEqual(status, 1, said)
        self.assertRegex(said, "(?m)^RED: ")
        return said

    def test_a_wrong_name_in_their_own_file(self):
        self.plant("stopping.h", "!options.ignore_eos", "!options.ignore_eso")
        said = self.red()
        self.assertIn("RED: stopping.h does not compile.\n", said)
        line = (self.mine / "stopping.h").read_text().split("ignore_eso")[0].count("\n") + 1
        self.assertRegex(said, rf"Your own stopping\.h:{line}: .*ignore_eso")
        self.assertIn(f"{line} |   if (ends.contains(token) && !options.ignore_eso)", said)
        for noise in ("-std=", "FAILED", "ninja", "-D"):
            self.assertNotIn(noise, said)
        self.assertEqual(said.count("ignore_eso'"), 1, "test.cpp and main.cpp include the same header")

    def test_names_that_only_the_checks_know_are_told_at_once(self):
        self.plant("stopping.h", "finish_reason(int", "reason_to_finish(int")
        self.plant("generate.h", "finish_reason(next", "reason_to_finish(next")
        self.plant("stopping.h", "ignore_eos", "ignore_end")
        said = self.red()
        self.assertIn("RED: test.cpp does not fit your code.\nThese names are needed and not there:\n", said)
        self.assertRegex(said, r"  finish_reason +test\.cpp:\d+, test\.cpp:\d+; the outline has it in stopping\.h: .*EndTokens&? ?ends")
        self.assertRegex(said, r"  StoppingOptions::ignore_eos +test\.cpp:\d+.*; the outline has it in stopping\.h")

    def test_a_missing_include(self):
        self.plant("generate.h", '#include "stopping.h"\n', "")
        said = self.red()
        self.assertIn("RED: generate.h does not compile.\n", said)
        self.assertRegex(said, r"Your own generate\.h:\d+: .*StoppingOptions")
        self.plant("generate.h", '#include "common/model/model.h"\n', '#include "no_such_file.h"\n')
        self.assertRegex(self.red(), r"Your own generate\.h:\d+: .*no_such_file\.h: No such file")

    def test_a_body_that_is_missing_when_programs_are_linked(self):
        text = (self.mine / "stopping.h").read_text()
        start, end = text.index("/// Whether a text ends"), text.rindex("}  // namespace")
        signature = text[start:end].partition(" {\n")[0].replace("inline ", "")
        (self.mine / "stopping.h").write_text(text[:start] + signature + ";\n\n" + text[end:])
        said = self.red()
        self.assertRegex(said, r"  finish_reason +the linker; the outline has it in stopping\.h")

    def test_an_error_of_a_template_names_the_line_that_uses_it(self):
        self.plant("generate.h", "tokens.push_back(next);", "tokens.push_back(next);\n    std::vector<int> x{1};\n"
                   "    std::sort(x.begin(), x.end(), [](int) { return true; });")
        said = self.red()
        self.assertIn("RED: generate.h does not compile.", said)
        line = (self.mine / "generate.h").read_text().split("std::sort")[0].count("\n") + 1
        self.assertIn(f"Your own generate.h:{line}: ", said)

    def test_an_off_by_one(self):
        self.plant("stopping.h", "count == options.max_new_tokens", "count + 1 == options.max_new_tokens")
        said = self.red()
        self.assertRegex(said, r"RED: \d of 8 checks red; begin with: ")
        first = said.index("RED  a text ends where Hugging Face's generate ends it")
        self.assertLess(first, said.index("RED  --ignore-eos continues after the end"))
        self.assertRegex(said, r'got: token 63: got nothing, want "[^"]+"')
        self.assertIn('where run["name"] := "greedy0"', said)
        for block in said.split("\nRED"):  # at most two failures a test case
            self.assertLessEqual(len(re.findall(r"^     test\.cpp:\d+ ", block, re.MULTILINE)), 2, block)
        self.assertNotIn("{?}", said)
        only = self.red("--only", "after the END")
        self.assertIn("RED: 1 of 1 checks with 'after the END' red; begin with: --ignore-eos continues", only)
        status, said = self.check(self.mine, "--only", "no such case")
        self.assertEqual(status, 2)
        self.assertIn("no test case has 'no such case' in its name; the test cases are: a text is finished", said)
        self.plant("stopping.h", "count + 1 == options.max_new_tokens", "count == options.max_new_tokens")
        self.assertIn("GREEN", self.check(self.mine)[1])

    def test_an_endless_loop(self):
        self.plant("stopping.h", "if (count == options.max_new_tokens)", "for (volatile int i = count; i == 3;) i = 3;\n"
                   "  if (count == options.max_new_tokens)")
        said = self.red("--limit", 12, "--only", "finished by")
        self.assertRegex(said, r'  10 s in "a text is finished by the end-of-text token, or by the last requested token"')
        self.assertIn("took longer than 12 seconds of computing, and was ended", said)
        start = time.monotonic()
        said = self.red("--limit", 1)
        self.assertLess(time.monotonic() - start, 20)
        self.assertEqual(said.count("took longer than 1 seconds"), 2)
        self.assertIn("more did not run, since two took too long", said)

    def test_an_endless_loop_that_prints(self):
        for line in ("x\\n", "without an end "):  # what it prints is read once, however much it is
            self.plant("stopping.h", "if (count == options.max_new_tokens)",
                       f'for (volatile int i = count; i == 3;) std::fputs("{line}", stderr);\n  if (count == options.max_new_tokens)')
            status, said = self.check(self.mine, "--limit", 1, "--only", "finished by", timeout=60)
            self.assertEqual(status, 1)
            self.assertIn("took longer than 1 seconds of computing", said)
            shutil.copyfile(self.solved.lesson()["stopping.h"], self.mine / "stopping.h")

    def test_who_waits_for_a_busy_machine_has_no_endless_loop(self):
        for seconds, status, words in ((4, 0, "1 of 8 checks green"), (60, 1, "has waited for 10 seconds without computing")):
            self.plant("stopping.h", "  if (ends.contains(token)", f"  static const int slept = (sleep({seconds}), 0);\n  (void)slept;\n"
                       "  if (ends.contains(token)")
            said = self.check(self.mine, "--limit", 2, "--only", "finished by")
            self.assertEqual(said[0], status, said[1])
            self.assertIn(words, said[1])
            shutil.copyfile(self.solved.lesson()["stopping.h"], self.mine / "stopping.h")

    def test_of_a_wrong_exception_and_a_wrong_sentence_both_sides_are_told(self):
        (self.mine / "test.cpp").write_text('''#include "tests/error_message.h"
#include "tests/step.h"
using namespace staircase;
static void refuse(const char* words) { throw Error("{}", words); }
TEST_CASE("types") {
  CHECK_THROWS_AS(refuse("mine"), UsageError);
  CHECK_THROWS_AS((void)0, UsageError);
}
TEST_CASE("words") {
  CHECK_THROWS_WITH_AS(refuse("mine"), doctest::Contains("yours"), Error);
  CHECK(says("it is 3", "it is", "but 4"));
}
TEST_CASE("statistics") {
  nlohmann::json stats = nlohmann::json::object();
  CHECK(stats["cache_filled"] > 0.1);
}
''')
        said = self.red()
        for words in ('threw another type: "mine", want UsageError', "threw nothing, want UsageError", 'want Error with "yours"',
                      '"it is 3" lacks "but 4"', 'stats["cache_filled"] > 0.1', "got nothing of that name   want: > 0.1"):
            self.assertIn(words, " ".join(said.split(" ")), said)

    def test_of_an_exception_the_check_before_it_is_told_or_the_case(self):
        (self.mine / "test.cpp").write_text('''#include "tests/step.h"
using namespace staircase;
static void refuse() { throw std::out_of_range("mine"); }
TEST_CASE("at once") {
  refuse();
}
TEST_CASE("later") {
  CHECK(1 == 1);
  for (int i = 0; i < 2; ++i) {
    CHECK(i < 2);
    if (i == 1) refuse();
  }
  CHECK(2 == 2);
}
TEST_CASE("in a check") {
  CHECK(1 == 1);
  CHECK((refuse(), true));
}
TEST_CASE("a crash") {
  CHECK(1 == 1);
  *(volatile int*)8 = 1;
}
''')
        said = self.red()
        self.assertIn("RED  at once\n     test.cpp:4  before the first check of this case\n       threw: mine\n", said)
        self.assertIn("RED  later\n     test.cpp:10  after this check\n       threw: mine\n", said)
        self.assertIn("RED  in a check\n     test.cpp:16  after this check\n       threw: mine\n", said)
        self.assertRegex(said, r"RED  a crash\n     crashed: .*\n       test\.cpp:20, after this check\n")

    def test_a_crash(self):
        self.plant("stopping.h", "  if (ends.contains(token)", "  if (count == 3) *(volatile int*)8 = 1;\n  if (ends.contains(token)")
        self.plant("stopping.h", "  if (count == options", "  if (token == 8) { std::vector<int> none; if (none[count]) return {}; }\n"
                   "  if (count == options")
        said = self.red("--only", "finish")
        self.assertNotIn("signal 11", said)
        self.assertIn("crashed: the standard library refuses std::vector::operator[], since n < this->size() is not so", said)
        self.assertIn(f"tools/step check '{self.mine}' --sanitize shows where it crashes.", said)
        self.assertRegex(self.red(), r"crashed: it used memory that is not its own")  # and the cases after it ran
        lines = (self.mine / "stopping.h").read_text().splitlines()
        said = self.red("--sanitize")
        for words, code in (("refuses std::vector::operator", "none[count]"), ("used memory that is not its own", "volatile")):
            line = next(i for i, line in enumerate(lines, 1) if code in line)
            self.assertRegex(said, rf"crashed: .*{words}.*\n( .*\n)*       in finish_reason, stopping\.h:{line}\n")

    def test_the_sanitizers_name_the_line(self):
        self.plant("stopping.h", "  if (ends.contains(token)", "  std::vector<int> three(3);\n  const int* data = three.data();\n"
                   "  if (data[count + 1] == 77) return {};\n  if (ends.contains(token)")
        self.assertEqual(self.check(self.mine, "--only", "is finished by")[0], 0)  # nothing is seen without them
        said = self.red("--sanitize", "--only", "is finished by")
        self.assertIn("crashed: AddressSanitizer found heap-buffer-overflow\n", said)
        line = (self.mine / "stopping.h").read_text().split("if (data[count")[0].count("\n") + 1
        self.assertIn(f"in finish_reason, stopping.h:{line}\n", said)
        self.assertRegex(said, r"       called, test\.cpp:\d+\n")
        self.assertNotIn("Shadow", said)

    def test_a_warning_is_shown_although_all_is_green(self):
        self.plant("stopping.h", "  if (ends.contains(token)", "  int unused = 1;\n  if (ends.contains(token)")
        for _ in range(2):  # the second time nothing is compiled
            status, said = self.check(self.mine)
            self.assertEqual(status, 0, said)
            self.assertRegex(said, r"(?m)^warning, stopping\.h:\d+: unused variable 'unused'")
        self.assertIn("(nothing has changed since the last check)", said)
        self.assertIn("compare     the project writes this in other words: finish_reason (steps/02-eos-handling/stopping.h:", said)
        self.assertIn("next        tools/step next       03-context-window: ", said)
        self.assertRegex((self.mine / "build.ninja").read_text(), r"(?m)^green = \d{4}-\d\d-\d\d$")

    def test_the_core_and_the_program(self):
        (self.mine / "test.cpp").write_text('''#include "tests/step.h"
TEST_CASE("the core") { CHECK(STAIRCASE_SOURCE_TREE != nullptr); }
static bool good() {
  return STAIRCASE_STEP_PROGRAM == nullptr;
}
TEST_CASE("the program") {
  CHECK(good());
  const std::vector<int> got{1, 2, 3};
  CHECK(got == std::vector<int>{1, 2, 4});
  CHECK(got.empty());
}
''')
        said = self.red()
        self.assertIn("RED: CORE GREEN, 1 check of the whole program left.\n1 of 2 checks red; begin with: the program\n", said)
        self.assertIn("got: [1, 2, 3]   want: [1, 2, 4]\n", said)
        self.assertNotIn("got.empty()", said)  # the third failure
        self.plant("test.cpp", "CHECK(good())", "CHECK(!good())")
        self.plant("test.cpp", "{1, 2, 4}", "{1, 2, 3}")
        self.plant("test.cpp", "CHECK(got.empty());", "")
        self.plant("stopping.h", '"--ignore-eos"', '"--ignore"')
        self.assertIn("RED: the checks pass, but the program has no option --ignore-eos yet; stopping.h adds it.", self.red())

    def test_what_a_learner_prints_is_shown(self):
        self.plant("generate.h", "    on_token({next});", '    std::fputs("printed\\n", stderr);\n    on_token({next});')
        self.assertIn("printed\n", self.check(self.mine, "--only", "in the prompt ends nothing")[1])

    def test_a_second_check_waits_for_the_first(self):
        with open(self.mine / "build/lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as another check does
            process = subprocess.Popen([ROOT / "tools/step", "check", self.mine, "--build", BUILD, "--only", "finished by"],
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(process.stderr.readline(), "Another check of this folder is running; this one waits for it ...\n")
            self.assertEqual(sorted(path.name for path in (self.mine / "build").iterdir()), ["library", "lock"])
        said, _ = process.communicate(timeout=300)
        self.assertEqual((process.returncode, "1 of 8 checks green" in said), (0, True), said)

    def test_a_folder_that_was_moved_goes_on(self):
        self.assertEqual(self.check(self.mine)[0], 0)
        moved = self.folder / "moved"
        self.mine.rename(moved)
        status, said = self.check(moved)
        self.assertEqual(status, 0, said)

    def test_watch_checks_at_every_save(self):
        process = subprocess.Popen([ROOT / "tools/step", "watch", self.mine, "--build", BUILD, "--only", "finished by"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)

        def until_it_waits():
            return "".join(iter(process.stdout.readline, "(waiting for the next save; Ctrl-C ends)\n"))
        self.assertIn("1 of 8 checks green", until_it_waits())
        self.plant("stopping.h", "count == options.max_new_tokens", "count == 2")
        said = until_it_waits()
        self.assertRegex(said, r"\n--- stopping\.h saved at \d\d:\d\d:\d\d\n", "the others are not new")
        self.assertIn("RED: 1 of 1 checks", said)
        (self.mine / "generate.h").unlink()
        self.assertIn("tools/step: generate.h is missing in ", until_it_waits())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=30), 0)

    def test_no_compiler(self):
        bare = self.folder / "bin"
        bare.mkdir()
        for name in ("ninja", "git", "bash", "sh", "env"):
            (bare / name).symlink_to(shutil.which(name))
        (bare / "python3").symlink_to(sys.executable)
        done = call(ROOT / "tools/step", "check", self.mine, "--build", BUILD, env={**os.environ, "PATH": str(bare)})
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"\Atools/step: there is no compiler: \S+ is not found; tools/setup installs it\.\n\Z")

    def test_steps_share_precompiled_headers_only_if_they_have_the_same_options(self):
        folders = {}
        for step in STEPS:
            if (BUILD / "steps" / step.name).exists():
                compilers = [compiler for compiler, _ in (project_commands(step, BUILD, product) for product in PRODUCTS)]
                options = [[word for word in compiler if not word.startswith(PROGRAM)] for compiler in compilers]
                folders.setdefault(str(options), set()).add(folder_of_headers(BUILD / "practice", "checked", compilers))
        self.assertEqual([len(found) for found in folders.values()], [1] * len(folders))
        self.assertEqual(len(set.union(*folders.values())), len(folders))
        self.assertLess(len(folders), 6)

    def test_what_keeps_a_compiler_from_its_work_is_a_sentence(self):
        self.assertIn("is full", reason("fatal error: error writing to /tmp/x.s: No space left on device", self.folder))
        self.assertIn("ran out of memory", reason("c++: fatal error: Killed signal terminated program cc1plus", self.folder))
        said = reason("ninja: stopped\nFAILED: x\nLC_ALL=C c++ -o x\nld: something\n", self.folder)
        self.assertTrue(said.endswith("its last ones: ld: something"), said)

    def on_a_full_disk(self, free, *arguments):
        """The output of `tools/step ARGUMENTS`, and the learner's folder afterwards, on a disk with `free` more KiB.
        The disk is a small one in memory that only this command sees: that needs no rights."""
        disk, after = self.folder / "disk", self.folder / "after"
        disk.mkdir(exist_ok=True)
        shutil.rmtree(after, ignore_errors=True)
        script = '''
disk=$1 mine=$2 after=$3 free=$4; shift 4
mount -t tmpfs -o size=4m none "$disk" || exit 77
if [[ -d $mine ]]; then cp -a "$mine" "$disk/mine"; fi
dd if=/dev/zero of="$disk/filler" bs=1k count=$(($(df -k --output=avail "$disk" | tail -n 1) - free)) 2>/dev/null
"$@"
status=$?
rm "$disk/filler"
cp -a "$disk" "$after"
exit "$status"'''
        done = call("unshare", "--map-root-user", "--mount", "bash", "-c", script, "bash", disk, self.mine, after, free,
                    ROOT / "tools/step", *arguments)
        if done.returncode == 77 or "unshare failed" in done.stderr:
            self.skipTest("this system does not let users mount their own disk: " + done.stderr.strip())
        said = [line for line in done.stderr.splitlines() if line and not line.startswith(("Building in ", "Compiling "))]
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], r"^tools/step: the disk that holds \S+ is full; free some .*\. Your files are unchanged\.$")
        self.assertEqual([path for path in after.rglob(".*")], [], "half-written")
        return snapshot(after)

    @unittest.skipUnless(shutil.which("unshare"), "unshare, which mounts a small disk, is not there")
    def test_a_full_disk_is_a_sentence_and_nothing_is_half_written(self):
        mine = self.folder / "disk/mine"
        before = {f"mine/{name}": what for name, what in snapshot(self.mine).items()}
        commands = [(0, "check", mine, "--build", BUILD), (100, "check", mine, "--build", BUILD),
                    (0, "practice", 2, mine, "--force"), (0, "practice", 2, self.folder / "disk/new")]
        for free, *command in commands:
            with self.subTest(command, free=free):
                after = self.on_a_full_disk(free, *command)
                kept = {name: what for name, what in after.items()
                        if not name.startswith("mine/build/") and (name != "mine/build.ninja" or not free)}
                self.assertEqual(kept, {name: what for name, what in before.items() if name in kept})
                self.assertLessEqual({name for name in before if not name.startswith("mine/build/")}, set(after))
        # Checks that the learner has changed are kept aside before the new ones come.
        self.plant("test.cpp", "TEST_CASE(", "// mine\nTEST_CASE(")
        (self.mine / "README.md").unlink()
        before = {f"mine/{name}": what for name, what in snapshot(self.mine).items()}
        self.assertEqual(self.on_a_full_disk(0, "practice", 2, mine, "--update"), before)

    def test_an_interrupted_check_leaves_the_folder_as_it_was(self):
        self.plant("stopping.h", "#pragma once", f"#pragma once\n// {time.time()}: something to compile")
        before = {path.name: path.read_bytes() for path in self.mine.glob("[!.]*.*") if path.name != "build.ninja"}
        process = subprocess.Popen([ROOT / "tools/step", "check", self.mine, "--build", BUILD], start_new_session=True,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while process.poll() is None and not children.read_text():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=30)[0]
        self.assertEqual((process.returncode, "Traceback" in said), (130, False), said)
        self.assertEqual({path.name: path.read_bytes() for path in self.mine.glob("[!.]*.*") if path.name != "build.ninja"}, before)
        self.assertEqual([path.name for path in self.mine.rglob(".*.new")], [])
        self.assertEqual(self.check(self.mine)[0], 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
