"""Stories of a person at a terminal, told by its screen: what they type, what the program does, what they see."""

import contextlib
import fcntl
import json
import os
import pty
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest
from pathlib import Path

from support import ROOT, Limited

try:
    import pyte
except ImportError:
    pyte = None

BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
PROGRAM = BUILD / "steps/143-saved-cache"
NINJA = BUILD / "build.ninja"
HAS_EDITOR = NINJA.is_file() and "-DSTAIRCASE_LIBEDIT=1" in NINJA.read_text()
LONG = ["--max-new-tokens", "100000", "--ignore-eos"]


class Terminal:
    """A program in a terminal that has a screen. `shell` puts the program into a pipe or a file."""

    def __init__(self, *options, shell="{}", columns=80, limit=None, **environment):
        self.main, side = pty.openpty()
        self.screen = pyte.HistoryScreen(columns, 24, history=1000)
        self.stream = pyte.ByteStream(self.screen)
        self.sent = b""
        self.resize(columns)
        words = [PROGRAM, "--chat-template", ROOT / "models/tales-chat.jinja", *options]
        command = shell.format(" ".join(f"'{word}'" for word in words))

        def start():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if limit:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        usual = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", "PS1": "$ ", **environment}
        self.process = subprocess.Popen(["bash", "-c", command] if shell != "-m" else ["bash", "--norc", "--noprofile", "-i"],
                                        stdin=side, stdout=side, stderr=side, env=usual, start_new_session=True,
                                        preexec_fn=start)
        self.before = termios.tcgetattr(side)
        os.close(side)
        self.words = " ".join(f"'{word}'" for word in words)

    def resize(self, columns):
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.screen.resize(24, columns)

    def type(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        os.write(self.main, data)

    def paste(self, text):
        """As a terminal does: with markers, if the program has switched them on."""
        self.look(0.05)
        data = text if isinstance(text, bytes) else text.encode()
        on = self.sent.rfind(b"\x1b[?2004h") > self.sent.rfind(b"\x1b[?2004l")
        self.type(b"\x1b[200~" + data + b"\x1b[201~" if on else data)

    def look(self, seconds):
        """Reads for that long; False once the program has ended."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.main], [], [], left)[0]:
                return True
            try:
                data = os.read(self.main, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.sent += data
            self.stream.feed(data)
        return True

    @property
    def text(self):
        """The screen without blanks at the ends of rows."""
        above = ["".join(row[x].data for x in range(self.screen.columns)).rstrip() for row in self.screen.history.top]
        return "\n".join([*above, *(row.rstrip() for row in self.screen.display)]).rstrip()

    def until(self, pattern, seconds=20):
        """Waits until the screen matches."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            if time.monotonic() > end or not self.look(0.02):
                self.look(0.1)
                if re.search(pattern, self.text):
                    return
                raise AssertionError(f"{pattern!r} does not appear:\n{self.text}\n{self.sent[-600:]!r}")

    def ask(self, text):
        """Types a question and waits for the prompt after its answer."""
        prompts = len(re.findall(r"(?m)^> ?", self.text))
        self.type(text + "\r")
        self.until_prompt(prompts + 1)

    def until_prompt(self, count):
        self.until(r"(?ms)(?:^> ?.*?){%d}" % count)

    def end(self):
        while self.look(1):
            pass
        return self.process.wait()

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        os.close(self.main)
        self.process.wait()


@unittest.skipUnless(pyte, "pyte is not installed; tools/setup --screen installs it")
@unittest.skipUnless(PROGRAM.is_file(), "the program is not built")
@unittest.skipUnless(HAS_EDITOR, "the program is built without libedit")
class Stories(Limited):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def open(self, *options, **more):
        if not any(str(option) == "--max-new-tokens" for option in options):
            options = ("--max-new-tokens", "3", *options)
        terminal = Terminal(*options, **more)
        self.addCleanup(terminal.close)
        terminal.until(r"(?m)^> ?$")
        return terminal

    def messages(self, terminal):
        file = self.folder / "talk.json"
        terminal.type(f"/save {file}\r")
        terminal.until("messages in ")
        return [(message["role"], message["content"]) for message in json.loads(file.read_text())]

    def questions(self, terminal):
        return [content for role, content in self.messages(terminal) if role == "user"]

    # One stream asked, another used

    def test_the_answer_goes_to_a_pipe_and_prompt_and_line_stay_on_the_screen(self):
        log = self.folder / "log"
        terminal = self.open(shell=f"{{}} | tee {log}")
        terminal.type("Who are yoo\x7fu?")
        terminal.until("> Who are you\\?$")
        terminal.type("\r")
        terminal.until_prompt(2)
        terminal.type("\x04")
        self.assertEqual(terminal.end(), 0)
        self.assertTrue(log.read_text().strip())
        self.assertNotIn("\x1b", log.read_text())
        self.assertNotIn("Who are", log.read_text())

    def test_a_file_gets_the_answer_alone(self):
        log = self.folder / "log"
        terminal = self.open(shell=f"{{}} >{log}")
        terminal.ask("Who are you?")
        terminal.type("/exit\r")
        self.assertEqual(terminal.end(), 0)
        self.assertNotIn("\x1b", log.read_text())
        self.assertGreater(len(log.read_text().split()), 1)

    def test_the_prompt_stays_on_the_screen_if_both_outputs_are_files(self):
        log, notes = self.folder / "log", self.folder / "notes"
        terminal = self.open(shell=f"{{}} >{log} 2>{notes}")
        terminal.ask("Who are you?")
        self.assertNotIn("\x1b", log.read_text() + notes.read_text())

    def test_ctrl_c_discards_a_line_while_a_pipe_takes_the_answers(self):
        terminal = self.open(shell=f"{{}} | tee {self.folder / 'log'}")
        terminal.type("wrong\x03Who?\r")
        terminal.until_prompt(2)
        self.assertEqual(self.questions(terminal), ["Who?"])

    def test_a_dumb_terminal_is_sent_no_escape_sequence(self):
        terminal = self.open(TERM="dumb")
        terminal.ask("Who are you?")
        terminal.type("/set\r")
        terminal.until("temperature 1")
        terminal.type("\x04")
        self.assertEqual(terminal.end(), 0)
        self.assertNotIn(b"\x1b", terminal.sent)

    def test_no_color_means_no_colours(self):
        terminal = self.open(NO_COLOR="1")
        terminal.type("/set\r")
        terminal.until("temperature 1")
        self.assertIsNone(re.search(rb"\x1b\[[0-9;]+m", terminal.sent))

    def test_ctrl_z_stops_the_program_at_the_prompt_and_the_line_is_there_again(self):
        terminal = Terminal(shell="-m")
        self.addCleanup(terminal.close)
        terminal.until(r"\$ $|\$$")
        terminal.type(terminal.words + " --max-new-tokens 3\r")
        terminal.until(r"(?m)^> ?$")
        terminal.type("half a que")
        terminal.until("half a que$")
        terminal.type("\x1a")
        terminal.until("Stopped")
        terminal.until(r"(?s)Stopped.*\$ ?$")
        terminal.type("echo $((40 + 2))\r")
        terminal.until(r"(?m)^42$")
        terminal.type("fg\r")
        terminal.until(r"(?m)^> half a que$")
        terminal.type("stion\r")
        terminal.until(r"(?ms)half a question$.*^> ?$")
        self.assertEqual(self.questions(terminal), ["half a question"])

    def test_ctrl_z_stops_an_answer_which_goes_on_later(self):
        terminal = Terminal(shell="-m")
        self.addCleanup(terminal.close)
        terminal.until(r"\$ ?$")
        terminal.type(terminal.words + " " + " ".join(LONG) + "\r")
        terminal.until(r"(?m)^> ?$")
        terminal.type("Who?\r")
        terminal.until(r"> Who\?\n.*\w \w")
        terminal.type("\x1a")
        terminal.until(r"(?s)Stopped.*\$ ?$")
        terminal.type("stty -a\r")
        terminal.until("icanon")
        terminal.type("fg\r")
        terminal.look(0.2)
        terminal.type("\x03")
        terminal.until(r"(?m)^> ?$(?!.*fg)")

    def test_a_signal_that_ends_the_program_leaves_the_terminal_as_it_was(self):
        for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
            with self.subTest(number):
                terminal = self.open(shell="exec {}")
                if number == signal.SIGQUIT:
                    terminal.type("\x1c")
                else:
                    os.kill(terminal.process.pid, number)
                terminal.look(0.3)
                self.assertEqual(terminal.process.wait(5), -number)
                self.assertTrue(terminal.sent.endswith(b"\x1b[?2004l") or b"\x1b[?2004l" in terminal.sent[-40:])

    def test_a_wider_terminal_keeps_the_line_above(self):
        terminal = self.open(columns=40)
        terminal.type("/undo\r")
        terminal.until("There is no question to forget.")
        terminal.type("a line of more than forty columns, which takes two rows")
        terminal.until("two rows$")
        terminal.screen.resize(24, 80)
        # A terminal that breaks lines anew shows two rows as one, and the cursor is in it.
        rows = terminal.text.split("\n")
        terminal.screen.reset()
        rows[-2:] = [rows[-2] + rows[-1]]
        terminal.stream.feed("\r\n".join(rows).encode())
        fcntl.ioctl(terminal.main, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        terminal.look(0.3)
        self.assertEqual(terminal.text.split("\n"), rows)
        # An editor that counts rows of 40 columns goes up from here, into the line above.
        terminal.type("\x01This is ")
        terminal.until("This is")
        terminal.look(0.1)
        line = "> This is " + rows.pop()[2:]
        self.assertEqual(terminal.text.split("\n"), [*rows, line])

    # Typed and pasted

    def asked(self, pasted, keys="\r", **more):
        terminal = self.open(**more)
        terminal.paste(pasted)
        terminal.look(0.1)
        terminal.type(keys)
        terminal.until_prompt(2)
        return self.questions(terminal)

    def test_a_pasted_path_is_a_question(self):
        self.assertEqual(self.asked("/usr/bin/env python3"), ["/usr/bin/env python3"])

    def test_a_pasted_command_is_a_question(self):
        self.assertEqual(self.asked("/exit now"), ["/exit now"])

    def test_a_pasted_comment_keeps_its_slashes(self):
        self.assertEqual(self.asked("// why?\nint x;"), ["// why?\nint x;"])

    def test_a_pasted_block_comment_is_a_question(self):
        self.assertEqual(self.asked("/* why? */ int x;"), ["/* why? */ int x;"])

    def test_pasted_lines_keep_their_indentation(self):
        self.assertEqual(self.asked("    if x:\n        y\n"), ["    if x:\n        y"])

    def test_a_paste_that_ends_in_a_backslash_ends_the_question(self):
        self.assertEqual(self.asked("C:\\temp\\"), ["C:\\temp\\"])

    def test_a_typed_backslash_after_a_paste_continues_the_line(self):
        self.assertEqual(self.asked("one", keys="\\\rtwo\r"), ["one\ntwo"])

    def test_a_pasted_nul_takes_nothing_with_it(self):
        self.assertEqual(self.asked("one\0two"), ["one\ufffdtwo"])

    def test_a_pasted_byte_of_latin_1_takes_nothing_with_it(self):
        self.assertEqual(self.asked(b"caf\xe9 au lait"), ["caf\ufffd au lait"])

    def test_a_typed_byte_of_latin_1_takes_nothing_with_it(self):
        terminal = self.open()
        terminal.type(b"caf\xe9\r")
        terminal.until_prompt(2)
        self.assertEqual(self.questions(terminal), ["caf\ufffd"])

    def test_a_command_with_a_pasted_file_is_a_command(self):
        terminal = self.open()
        terminal.ask("Who?")
        terminal.type("/save ")
        terminal.paste(str(self.folder / "a.json"))
        terminal.type("\r")
        terminal.until("messages in ")

    def test_a_pasted_question_comes_back_from_the_history_as_a_question(self):
        terminal = self.open()
        terminal.paste("/usr/bin/env")
        terminal.type("\r")
        terminal.until_prompt(2)
        terminal.type("\x1b[A\r")
        terminal.until_prompt(3)
        terminal.type("/set seed 7\r")
        terminal.until_prompt(4)
        terminal.type("\x1b[A\r")  # what was typed stays a command
        terminal.until_prompt(5)
        self.assertEqual(self.questions(terminal), ["/usr/bin/env"] * 2)

    def test_lines_pasted_during_an_answer_wait_as_one_question(self):
        terminal = self.open(*LONG)
        terminal.type("Who?\r")
        terminal.until(r"> Who\?\n.*\w \w")
        terminal.paste("one\r two\rthree")
        terminal.look(0.2)
        self.assertNotIn("three", terminal.text)
        terminal.type("/")  # the terminal has read all of it; now Ctrl-C would flush it, so the answer ends by itself
        terminal.until("three/", 40)
        terminal.type("\r")
        terminal.until(r"(?s)three/\n.*\w \w")
        terminal.type("\x03")
        terminal.until(r"(?ms)three/\n.*^> ?$")
        self.assertEqual(self.questions(terminal)[1], "one\n two\nthree/")

    def test_ctrl_c_takes_back_all_lines_of_a_question(self):
        terminal = self.open()
        terminal.type("one\\\r")
        terminal.until(r"(?m)^\. ?$")
        terminal.type("two\x03")
        terminal.until_prompt(2)
        terminal.type("Who?\r")
        terminal.until_prompt(3)
        self.assertEqual(self.questions(terminal), ["Who?"])

    def test_a_paste_of_3000_lines_is_one_question(self):
        terminal = self.open()
        text = "\n".join(f"{i} {'x' * 20}" for i in range(3000))
        os.set_blocking(terminal.main, False)
        rest = b"\x1b[200~" + text.encode() + b"\x1b[201~\r"
        while rest:
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(terminal.main, rest[:1024]):]
            terminal.look(0.001)
        terminal.until("the model sees at most")

    def test_ctrl_c_is_heard_during_a_long_prompt(self):
        model = self.folder / "long"  # the weights of another, which rotate positions, with room for long texts
        shutil.copytree(ROOT / "models/tales-llama-1m", model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 16384}))
        terminal = self.open("--model", model, "--context", 16384, "--threads", 1, "--show-use",
                             "--system", "the king and the queen " * 2000, columns=120)
        terminal.type("Who?\r")
        terminal.look(0.5)
        start = time.monotonic()
        terminal.type("\x03")
        terminal.until_prompt(2)
        waited = time.monotonic() - start
        self.assertEqual(self.questions(terminal), [])
        terminal.type("Who?\r")
        terminal.until("prompt tokens.*tokens/s", 40)
        prompt, cached, rest = map(int, re.search(r"(\d+) prompt tokens, (\d+) of them from the cache; "
                                                  r"first token after (\d+) ms", terminal.text).groups())
        self.assertGreater(prompt, 10000)
        self.assertEqual(cached % 256, 0)  # whole parts
        self.assertLess(waited, rest / 1000 / 2)

    # Keys

    def typed(self, *keys):
        """What becomes of a line with each of these keys, and an X after it."""
        terminal = self.open()
        for count, key in enumerate(keys):
            terminal.type(f"one two three{key}X\r")
            terminal.until_prompt(count + 2)
        return self.questions(terminal)

    def test_each_key_that_moves_or_deletes_does_so_with_shift_alt_and_control_too(self):
        moved = {"C": "one two threeX", "F": "one two threeX", "D": "one two Xthree", "H": "Xone two three"}
        for letter, text in moved.items():
            self.assertEqual(self.typed(*(f"\x1b[1;{modifier}{letter}" for modifier in range(2, 9))), [text] * 7, letter)
        self.assertEqual(self.typed(*(f"\x1b[{key}~" for key in (1, 4, 7, 8)), "\x1b[H\x1b[3~\x1b[3;5~"),
                         ["Xone two three", "one two threeX"] * 2 + ["Xe two three"])

    def test_a_key_without_a_use_changes_nothing(self):
        numbers = [number for number in range(1, 35) if number not in (1, 3, 4, 7, 8)]
        keys = [f"[{number}{modifier}~" for number in numbers for modifier in ("", *(f";{i}" for i in range(2, 9)))]
        keys += [f"[1;{modifier}{letter}" for modifier in range(2, 9) for letter in "PQRS"]
        keys += ["OP", "OQ", "OR", "OS", "[Z", "x"]
        left = "\x1b[D" * 3  # at the end of a line, a key that moves to it changes nothing either
        self.assertEqual(self.typed(left + "".join("\x1b" + key for key in keys)), ["one two thXree"])

    def test_ctrl_r_finds_an_earlier_line(self):
        terminal = self.open()
        for i, text in enumerate(("Why do you weep?", "Where do you live?")):
            terminal.ask(text)
        terminal.type("\x12weep\r")
        terminal.until_prompt(4)
        self.assertEqual(self.questions(terminal)[2:], ["Why do you weep?"])

    # Settings and files

    def test_a_command_that_takes_nothing_refuses_an_argument(self):
        terminal = self.open()
        terminal.ask("Who?")
        for command in ("undo", "reset", "help", "exit"):
            terminal.type(f"/{command} 3\r")
            terminal.until(f"/{command} takes no text, but 3 follows it")
        self.assertEqual(self.questions(terminal), ["Who?"])

    def test_a_seed_begins_its_random_numbers_again(self):
        terminal = self.open("--do-sample", "--temperature", "1.5", "--max-new-tokens", "12")
        prompts = 1
        for command in ("set seed 7", "undo", "set seed 7", "undo", "set seed 8"):
            terminal.type(f"/{command}\r")
            prompts += 1
            terminal.until_prompt(prompts)
            if command.startswith("set"):
                terminal.type("Who are you?\r")
                prompts += 1
                terminal.until_prompt(prompts)
        answers = [re.split(r"\n>|The answer", part)[0] for part in terminal.text.split("> Who are you?\n")[1:]]
        self.assertEqual(len(answers), 3)
        self.assertEqual(answers[0], answers[1])
        self.assertNotEqual(answers[1], answers[2])

    def test_candidates_are_shown(self):
        terminal = self.open("--show-candidates", "2")
        terminal.ask("Who?")
        self.assertEqual(len(re.findall(r"(?m)^[> ] \".*% ", terminal.text)), 6)
        terminal.type("/set show-candidates 0\r")
        terminal.ask("Who?")
        self.assertEqual(len(re.findall(r"(?m)^[> ] \".*% ", terminal.text)), 6)

    def test_a_full_disk_leaves_the_earlier_file(self):
        terminal = self.open(limit=100)
        file = self.folder / "talk.json"
        earlier = '[{"role": "user", "content": "Who?"}]'
        file.write_text(earlier)
        terminal.ask("Why do you weep? " * 5)
        terminal.type(f"/save {file}\r")
        terminal.until("cannot be written: File too large")
        self.assertEqual(file.read_text(), earlier)
        self.assertEqual(os.listdir(self.folder), ["talk.json"])

    def test_a_tilde_is_the_home_folder(self):
        terminal = self.open(HOME=str(self.folder))
        terminal.ask("Who?")
        terminal.type("/save ~/mine.json\r")
        terminal.until("Saved 2 messages in")
        self.assertTrue((self.folder / "mine.json").is_file())
        terminal.type("/reset\r/load ~/mine.json\r")
        terminal.until("The conversation has 2 messages")
        terminal.type("/save ~else/mine.json\r")
        terminal.until("works only as ~/")

    def test_a_file_of_another_system_is_the_same_question(self):
        texts = []
        for form in (b"Why do\nyou weep?\n", b"\xef\xbb\xbfWhy do\r\nyou weep?\r\n"):
            done = subprocess.run([PROGRAM, "--chat-template", ROOT / "models/tales-chat.jinja", "--show-use",
                                   "--max-new-tokens", "9"], input=form, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            texts.append((done.stdout, re.search(rb"\d+ prompt tokens", done.stderr)[0]))
        self.assertEqual(*texts)


if __name__ == "__main__":
    unittest.main()
