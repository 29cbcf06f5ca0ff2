"""A conversation at a terminal, and what tools/chat makes of its arguments."""

import contextlib
import fcntl
import json
import os
import pty
import random
import re
import resource
import signal
import subprocess
import tempfile
import termios
import time
import unittest
from pathlib import Path

from support import ROOT, Limited

BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
PROGRAM = BUILD / "steps/143-saved-cache"
CHAT_PROGRAMS = [program for program in [*sorted((BUILD / "steps").glob("9[3-6]-*")), PROGRAM] if program.is_file()]
TEMPLATE = ["--chat-template", ROOT / "models/tales-chat.jinja"]
PASTE = "\x1b[200~{}\x1b[201~"
NINJA = BUILD / "build.ninja"
HAS_EDITOR = NINJA.is_file() and "-DSTAIRCASE_LIBEDIT=1" in NINJA.read_text()


class Terminal:
    """A program that runs at a terminal, typed to by a person."""

    def __init__(self, *command, kind="xterm"):
        self.main, side = pty.openpty()
        environment = {**os.environ, "NO_COLOR": "1", "TERM": kind, "LC_ALL": "C.UTF-8"}
        self.process = subprocess.Popen([str(part) for part in command], stdin=side, stdout=side, stderr=side,
                                        env=environment, start_new_session=True, preexec_fn=take_terminal)
        os.close(side)
        self.text, self.read = "", 0

    def type(self, text):
        os.write(self.main, text.encode())

    def wait_for(self, pattern):
        """The output up to the first match of `pattern` after the previous match."""
        while True:
            found = re.compile(pattern).search(self.text, self.read)
            if found:
                before, self.read = self.text[self.read:found.end()], found.end()
                return before
            try:
                self.text += os.read(self.main, 4096).decode(errors="replace").replace("\r\n", "\n")
            except OSError:
                raise AssertionError(f"it ended without {pattern!r}: {self.text!r}") from None

    def end(self):
        """The exit status."""
        with contextlib.suppress(OSError):
            while os.read(self.main, 4096):
                pass
        os.close(self.main)
        return self.process.wait()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            os.close(self.main)
            self.process.wait()


def take_terminal():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@unittest.skipUnless(PROGRAM.is_file(), "the program is not built")
class AtATerminal(Limited):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def talk(self, *options):
        terminal = Terminal(PROGRAM, *TEMPLATE, *options)
        self.addCleanup(terminal.kill)
        terminal.wait_for("/help lists the commands")
        terminal.wait_for("> ")
        return terminal

    def saved(self, terminal):
        """The conversation, as the program saves it."""
        file = self.folder / "talk.json"
        terminal.type(f"/save {file}\r")
        terminal.wait_for("messages in ")
        return json.loads(file.read_text())

    def test_a_question_gets_its_answer_and_ctrl_d_leaves(self):
        terminal = self.talk("--max-new-tokens", "12")
        terminal.type("Why do you weep?\r")
        terminal.wait_for("Why do you weep\\? I am not hungry")
        terminal.wait_for("> ")
        terminal.type("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_with_a_question_among_the_options_the_program_ends_after_its_answer(self):
        terminal = Terminal(PROGRAM, *TEMPLATE, "--max-new-tokens", "12", "--prompt", "Why do you weep?")
        self.addCleanup(terminal.kill)
        terminal.wait_for("I am not hungry")
        self.assertEqual(terminal.end(), 0)

    def test_an_answer_keeps_its_tabs_and_lines_and_no_other_control_character_reaches_the_terminal(self):
        """A pipe gets the answer as it is. Here it is of nearly uniform tokens, until one is a tab."""
        options = [*TEMPLATE, "--model", "tales-1m", "--prompt", "Who?", "--do-sample", "--temperature", "100",
                   "--max-new-tokens", "400", "--ignore-eos"]
        for seed in range(10, 200):
            done = subprocess.run([PROGRAM, *options, "--seed", str(seed)], stdin=subprocess.DEVNULL, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            answer = done.stdout.decode().rstrip("\n")
            if "\t" in answer and re.search(r"[\x00-\x08]|[\x0b-\x1f]", answer):
                break
        wanted = re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", answer)
        self.assertIn("\t", wanted)
        terminal = Terminal(PROGRAM, *options, "--seed", seed)
        self.addCleanup(terminal.kill)
        terminal.wait_for("cut off")
        wanted, shown = (re.sub("[^\x00-\x7f]+", "", text) for text in (wanted, terminal.text))  # a read may end in a character
        self.assertIn(wanted, shown)

    def test_ctrl_c_ends_an_answer_and_not_the_program(self):
        terminal = self.talk("--max-new-tokens", "100000", "--ignore-eos", "--context", "512")
        terminal.type("Why do you weep?\r")
        terminal.wait_for("hungry")
        terminal.type("\x03")
        self.assertNotIn("cut off", terminal.wait_for("> "))
        messages = self.saved(terminal)
        self.assertEqual([message["role"] for message in messages], ["user", "assistant"])
        self.assertIn("hungry", messages[1]["content"])
        terminal.wait_for("> ")
        terminal.type("/exit\r")
        self.assertEqual(terminal.end(), 0)

    @unittest.skipUnless(HAS_EDITOR, "without libedit the terminal edits lines itself")
    def test_what_is_pasted_is_one_question_with_its_lines(self):
        terminal = self.talk("--max-new-tokens", "1")
        terminal.type(PASTE.format("Grüße\rund\r\nFüchse\n🦊"))
        terminal.type("\r")
        terminal.wait_for("cut off")
        terminal.wait_for("> ")
        self.assertEqual(self.saved(terminal)[0]["content"], "Grüße\nund\nFüchse\n🦊")

    @unittest.skipUnless(HAS_EDITOR, "without libedit the terminal edits lines itself")
    def test_ctrl_c_discards_what_is_typed_and_an_arrow_brings_a_line_back(self):
        terminal = self.talk("--max-new-tokens", "1")
        terminal.type("a wrong line\x03")
        terminal.type("Who are you?\r")
        terminal.wait_for("cut off")
        terminal.wait_for("> ")
        terminal.type("\x1b[A\r")
        terminal.wait_for("cut off")
        terminal.wait_for("> ")
        messages = self.saved(terminal)
        self.assertEqual([message["content"] for message in messages[::2]], ["Who are you?", "Who are you?"])

    @unittest.skipUnless(HAS_EDITOR, "without libedit the terminal edits lines itself")
    def test_an_arrow_brings_back_what_was_typed_and_no_blank_line(self):
        terminal = self.talk("--max-new-tokens", "1")
        terminal.type("Who are you?\r")
        terminal.wait_for("cut off")
        for blank in ("\r", "  \r"):
            terminal.wait_for("> ")
            terminal.type(blank)
        terminal.wait_for("> ")
        terminal.type("\x1b[A\r")
        terminal.wait_for("cut off")
        terminal.wait_for("> ")
        self.assertEqual([message["content"] for message in self.saved(terminal)[::2]], ["Who are you?"] * 2)

    def test_a_backslash_at_the_end_continues_a_line(self):
        terminal = self.talk("--max-new-tokens", "1")
        terminal.type("one\\\r")
        terminal.wait_for("2004h\\. |\n\\. ")
        terminal.type("two\r")
        terminal.wait_for("cut off")
        terminal.wait_for("> ")
        self.assertEqual(self.saved(terminal)[0]["content"], "one\ntwo")


# What shows that an option has an effect: another value, and the options that it needs for that.
SETTINGS = {
    "max-new-tokens": ("3", {}),
    "ignore-eos": ("true", {"presence-penalty": "2"}),  # with which the answer ends
    "do-sample": ("true", {}),
    "seed": ("7", {"do-sample": "true"}),
    "presence-penalty": ("2", {}),
    "frequency-penalty": ("2", {}),
    "repetition-penalty": ("2", {}),
    "temperature": ("2", {"do-sample": "true"}),
    "top-k": ("1", {"do-sample": "true"}),
    "top-p": ("0.01", {"do-sample": "true"}),
    "show-candidates": ("2", {}),
}
OPTIONS = {
    **SETTINGS,
    "model": ("tales-gqa-1m", {}),
    "device": ("cuda", {}),  # refused where no GPU is seen
    "context": ("16", {}),
    "prompt": ("Who are you?", {}),
    "system": ("There was a wood.", {"do-sample": "true"}),
    "chat-template": ("other.jinja", {}),
    "generation-config": ("other.json", {}),
    "show-use": ("true", {}),
    "json-schema": ("age.schema.json", {}),
    "dtype": ("int4", {}),
    "cache-dtype": ("int8", {"do-sample": "true", "temperature": "3"}),
}
COMMANDS = {"help", "system", "reset", "undo", "save", "load", "set", "exit"}
QUESTION = "Why do you weep?"


class EveryOption(Limited):
    """The lists are the programs' own: an option, a setting or a command that is new has to show an effect here."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "other.json").write_text('{"repetition_penalty": 2}')
        (self.folder / "age.schema.json").write_text('{"type": "integer"}')
        (self.folder / "other.jinja").write_text("{% for message in messages %}{{ message.content }}.{% endfor %}")

    def run_program(self, program, options):
        usual = {"model": "tales-1m", "chat-template": TEMPLATE[1], "max-new-tokens": "40"}
        words = ["--prompt", QUESTION]
        for name, value in {**usual, **options}.items():
            words += [f"--{name}"] if value == "true" else [f"--{name}", value]
        done = subprocess.run([program, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, cwd=self.folder)
        self.assertIn(done.returncode, (0, 1, 2))
        return done.stdout, re.sub(r"\d+", "", done.stderr)

    def test_each_option_of_a_chat_program_has_an_effect(self):
        for program in CHAT_PROGRAMS:
            listed = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
            names = set(re.findall(r"(?m)^  (?:-\w,)?--([\w-]+)", listed)) - {"help"}
            options = dict(OPTIONS)
            if program.name.startswith("93-"):
                del options["cache-dtype"]  # it has no cache
            if program == PROGRAM:
                options["session"] = (str(self.folder), {})  # refused: a folder
            self.assertEqual(names, set(options) | {"threads"}, program)
            for name, (value, needs) in options.items():
                with self.subTest(program=program.name, option=name):
                    without = self.run_program(program, needs)
                    self.assertEqual(without[1].count("error"), 0, without)
                    self.assertNotEqual(self.run_program(program, {**needs, name: value}), without)
            with subprocess.Popen([program, "--threads", "5", *TEMPLATE], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as waiting:
                while "Threads:\t5\n" not in Path(f"/proc/{waiting.pid}/status").read_text():
                    time.sleep(0.005)
                waiting.kill()

    def talk(self, program):
        terminal = Terminal(program, "--model", "tales-1m", *TEMPLATE, "--max-new-tokens", "40", kind="dumb")
        self.addCleanup(terminal.kill)
        terminal.wait_for("> $")
        return terminal

    def enter(self, terminal, line):
        """What appears until the next prompt."""
        terminal.type(line + "\r")
        terminal.wait_for("\n")  # the echo of the line
        return terminal.wait_for(r"(?<![^\n])> $")[:-2]

    def test_each_setting_has_an_effect_and_can_be_taken_back(self):
        for program in CHAT_PROGRAMS:
            terminal = self.talk(program)
            usual = dict(line.split(" ", 1) for line in self.enter(terminal, "/set").splitlines())
            self.assertEqual(set(usual), set(SETTINGS), program)
            first = self.answer(terminal)
            for name, (value, needs) in SETTINGS.items():
                with self.subTest(program=program.name, setting=name):
                    without = self.answer(terminal, needs)
                    self.assertNotEqual(self.answer(terminal, {name: value}), without)
                    self.assertEqual(self.answer(terminal, {other: usual[other] for other in (name, *needs)}), first)

    def answer(self, terminal, settings={}):
        self.enter(terminal, "/set seed 0")
        for name, value in settings.items():
            said = self.enter(terminal, f"/set {name} {value}")
            self.assertTrue(not said or said.startswith("warning: "), said)
        said = self.enter(terminal, QUESTION)
        self.enter(terminal, "/undo")
        return said

    def test_each_command_has_an_effect(self):
        terminal = self.talk(PROGRAM)
        listed = self.enter(terminal, "/help")
        self.assertEqual(set(re.findall(r"(?m)^/(\w+)", listed)), COMMANDS)
        file = self.folder / "talk.json"

        def roles():
            self.enter(terminal, f"/save {file}")
            return [message["role"] for message in json.loads(file.read_text())]

        self.enter(terminal, QUESTION)
        self.assertEqual(roles(), ["user", "assistant"])
        self.enter(terminal, "/system Be brief.")
        self.assertEqual(roles(), ["system", "user", "assistant"])
        other = self.folder / "other.json"
        other.write_text(file.read_text())
        self.enter(terminal, "/undo")
        self.assertEqual(roles(), ["system"])
        self.enter(terminal, f"/load {other}")
        self.assertEqual(roles(), ["system", "user", "assistant"])
        self.enter(terminal, "/reset")
        self.assertEqual(roles(), ["system"])
        self.enter(terminal, "/system")
        self.assertEqual(roles(), [])
        terminal.type("/exit\r")
        self.assertEqual(terminal.end(), 0)


class AtAPipe(Limited):
    def test_a_question_has_the_lines_that_an_editor_shows(self):
        # The template refuses every question, and says what it is.
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{{ raise_exception(messages[0].content | tojson) }}")
            template.flush()
            for given, question in ((b"\r\na\r\nb\n", "\na\nb"), (b"\xef\xbb\xbfa\n\n\n", "a"), (b"a\r\n\r\n", "a")):
                with self.subTest(given):
                    done = subprocess.run([PROGRAM, "--chat-template", template.name], input=given, capture_output=True)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertIn(f"raises an exception: {json.dumps(question)}\n", done.stderr.decode())


@unittest.skipUnless(PROGRAM.is_file(), "the program is not built")
class Schemas(Limited):
    """With --json-schema, answers are valid."""

    FORM = {"type": "object", "properties": {"animal": {"enum": ["fox", "lion"]}, "age": {"type": "integer", "minimum": 1, "maximum": 30},
                                             "word": {"type": "string", "maxLength": 8}},
            "required": ["animal", "age", "word"], "additionalProperties": False}

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.schema = self.folder / "form.json"
        self.schema.write_text(json.dumps(self.FORM))

    def ask(self, *options, program=PROGRAM, **keys):
        return subprocess.run([program, *TEMPLATE, "--json-schema", self.schema, *options], capture_output=True, text=True, **keys)

    def assert_valid(self, text):
        form = json.loads(text)
        self.assertEqual(sorted(form), ["age", "animal", "word"])
        self.assertIn(form["animal"], ("fox", "lion"))
        self.assertIn(form["age"], range(1, 31))
        self.assertLessEqual(len(form["word"]), 8)
        return form

    def test_each_answer_of_a_conversation_is_valid_and_the_next_begins_anew(self):
        for program in CHAT_PROGRAMS:
            for seed in range(4):
                done = self.ask("--prompt", "Who are you?", "--do-sample", "--seed", str(seed), "--max-new-tokens", "200",
                                "--prompt", "And who is that?", "--repetition-penalty", "1.2", program=program)
                self.assertEqual(done.returncode, 0, done.stderr)
                decoder, text = json.JSONDecoder(), done.stdout.strip()
                first, end = decoder.raw_decode(text)
                self.assert_valid(json.dumps(first))
                self.assert_valid(text[end:])

    def test_a_pipe_gets_the_answer_alone_and_token_by_token(self):
        with subprocess.Popen([PROGRAM, *TEMPLATE, "--json-schema", self.schema], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as process:
            process.stdin.write(b"Who are you?")
            process.stdin.close()
            parts = list(iter(lambda: os.read(process.stdout.fileno(), 4096), b""))
        self.assertGreater(len(parts), 5)
        self.assert_valid(b"".join(parts))

    def test_at_a_terminal_the_end_must_stay_the_schemas(self):
        terminal = Terminal(PROGRAM, *TEMPLATE, "--json-schema", self.schema, kind="dumb")
        self.addCleanup(terminal.kill)
        terminal.wait_for("> $")
        terminal.type("Who are you?\r")
        terminal.wait_for("\n")
        self.assert_valid(terminal.wait_for(r"(?<![^\n])> $")[:-2])
        terminal.type("/set ignore-eos true\r")
        terminal.wait_for("> $")
        terminal.type("Who are you?\r")
        self.assertIn("--json-schema decides where an answer ends, so leave out --ignore-eos", terminal.wait_for(r"eos\n"))

    def test_what_cannot_be_used_is_one_sentence_before_the_model_is_read(self):
        for text, sentence in (('{"properties": {"age": {"multipleOf": 3}}}',
                                "the schema cannot be used at /properties/age/multipleOf: this keyword is not supported"),
                               ("false", "no JSON value is valid under the schema"), ('{"type": ', "the schema"), (None, "does not exist")):
            with self.subTest(text):
                self.schema.unlink(missing_ok=True)
                if text is not None:
                    self.schema.write_text(text)
                done = self.ask("--model", self.folder / "none", "--prompt", "Who?")
                self.assertIn(done.returncode, (1, 2))
                self.assertEqual((done.stdout, done.stderr.count("\n")), ("", 1))
                self.assertIn(sentence, done.stderr)
        self.schema.write_text("{}")
        done = self.ask("--prompt", "Who?", "--ignore-eos")
        self.assertEqual((done.returncode, done.stderr),
                         (2, "error: --json-schema decides where an answer ends, so leave out --ignore-eos\n"))


@unittest.skipUnless(PROGRAM.is_file(), "the program is not built")
class Recommendations(Limited):
    """generation_config.json gives the options of a chat their defaults."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for file in (ROOT / "models/tales-1m").iterdir():
            (self.folder / file.name).symlink_to(file)
        (self.folder / "generation_config.json").unlink()

    def recommend(self, **settings):
        (self.folder / "generation_config.json").write_text(json.dumps(settings))

    def answer(self, *options, program=PROGRAM, model=None):
        done = subprocess.run([program, *TEMPLATE, "--model", model or self.folder, "--max-new-tokens", "30", "--seed", "3",
                               "--prompt", "Why do you weep?", *options], capture_output=True, text=True)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return done.stdout, done.stderr

    def test_an_answer_is_the_one_that_the_same_options_give(self):
        plain, quiet = self.answer()
        self.assertNotIn("sets", quiet)
        options = ["--do-sample", "--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--repetition-penalty", "1.3"]
        settings = {"do_sample": True, "temperature": 0.9, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.3}
        typed = self.answer(*options)[0]
        self.assertNotEqual(typed, plain)
        self.recommend(**settings, min_p=0.05, num_beams=4)
        for program in CHAT_PROGRAMS:
            with self.subTest(program.name):
                taken, said = self.answer(program=program)
                self.assertEqual(taken, typed)
                self.assertEqual(said.count("generation_config.json sets do_sample true, temperature 0.9, top_k 40, top_p 0.95, "
                                            "repetition_penalty 1.3; options override it\n"), 1)
                self.assertEqual(said.count("generation_config.json sets num_beams 4, min_p 0.05, which nothing reads here"), 1)

    def test_each_setting_is_taken_alone_and_each_option_comes_before_it(self):
        self.recommend()
        greedy, drawn = self.answer()[0], self.answer("--do-sample")[0]
        for name, value, option, other in (("temperature", 0.3, "--temperature", "1"), ("top_k", 2, "--top-k", "4096"),
                                           ("top_p", 0.2, "--top-p", "1"), ("repetition_penalty", 1.9, "--repetition-penalty", "1")):
            with self.subTest(name):
                self.recommend(do_sample=True, **{name: value})
                mine = self.answer()[0]
                self.assertNotIn(mine, (greedy, drawn))
                self.recommend()
                self.assertEqual(self.answer("--do-sample", option, str(value))[0], mine)
                self.recommend(do_sample=True, **{name: value})
                text, said = self.answer(option, other)
                self.assertEqual(text, drawn)
                self.assertIn("sets do_sample true; options override it", said)
        self.assertEqual(self.answer("--no-do-sample", "--repetition-penalty", "1")[0], greedy)
        self.recommend(do_sample=False)
        self.assertEqual(self.answer()[0], greedy)
        self.assertEqual(self.answer("--do-sample")[0], drawn)

    def test_a_file_replaces_that_of_the_model(self):
        self.recommend(do_sample=True, temperature=2.0)
        file = self.folder / "mine.json"
        file.write_text('{"repetition_penalty": 1.9, "eos_token_id": 5}')
        text, said = self.answer("--generation-config", file)
        self.assertEqual(text, self.answer("--no-do-sample", "--temperature", "1", "--repetition-penalty", "1.9")[0])
        self.assertIn("mine.json sets repetition_penalty 1.9; options override it", said)
        self.assertIn("mine.json sets eos_token_id 5, which nothing reads here", said)
        file.write_text("[1]")
        self.assertEqual(self.answer("--generation-config", file)[1], f"error: {file} holds an array, not a JSON object\n")
        self.assertEqual(self.answer("--generation-config", self.folder / "no.json")[1],
                         f"error: {self.folder}/no.json does not exist\n")

    def test_a_wrong_value_and_suppressed_tokens_are_refused(self):
        file = self.folder / "generation_config.json"
        for settings, sentence in (({"temperature": -1}, "--temperature is -1, but it must be a number of 0 or more"),
                                   ({"top_k": 2.5}, "--top-k is 2.5, but it must be a whole number of 1 or more"),
                                   ({"top_p": "x"}, "--top-p is"), ({"repetition_penalty": [1]}, "--repetition-penalty is"),
                                   ({"do_sample": 1}, "--do-sample is 1, but it must be true or false"),
                                   ({"suppress_tokens": [5]}, "suppress_tokens is set, but chats cannot suppress tokens"),
                                   ({"begin_suppress_tokens": [5]}, "begin_suppress_tokens is set")):
            with self.subTest(settings):
                self.recommend(**settings)
                text, said = self.answer()
                self.assertEqual(text, "")
                self.assertTrue(said.startswith(f"error: {file}: {sentence}"), said)
                self.assertEqual(said.count("\n"), 1)
        self.recommend(temperature=-1)
        self.assertNotEqual(self.answer("--temperature", "1")[0], "")

    def test_help_has_the_defaults_of_the_model(self):
        def shown(*options):
            return subprocess.run([PROGRAM, *options, "--help"], capture_output=True, text=True, check=True).stdout

        self.recommend(do_sample=True, temperature=0.7, top_k=20)
        for words in ("--temperature X (a number of 0 or more)=0.7", "--top-k N (1 or more)=20", "--do-sample,--no-do-sample{false}=true"):
            self.assertIn(words, shown("--model", self.folder))
            self.assertNotIn(words, shown())
            self.assertNotIn(words, shown("--model", self.folder / "none"))
        file = ROOT / "tools/smollm2_generation.json"
        self.assertIn("--temperature X (a number of 0 or more)=0.2", shown("--model", self.folder / "none", "--generation-config", file))


class Sessions(Limited):
    """Conversations that go on where another program has ended, in any way."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.file = self.folder / "talk.session"

    def command(self, *words, tokens=30):
        return [PROGRAM, "--model", "tales-6m", *TEMPLATE, "--session", self.file, "--max-new-tokens", str(tokens), *words]

    def ask(self, question, *words, **options):
        return subprocess.run(self.command("--prompt", question, "--show-use", *words), stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, **options)

    def test_a_program_that_is_killed_in_an_answer_leaves_the_answers_before(self):
        self.assertEqual(self.ask("Why do you weep?").returncode, 0)
        before = self.file.read_bytes()
        with subprocess.Popen(self.command("--ignore-eos", "--prompt", "Where do you live?", tokens=400),
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            self.assertTrue(process.stdout.read(20))  # it is answering
            process.kill()
        self.assertEqual(self.file.read_bytes(), before)
        done = self.ask("Where do you live?")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("47 of them from the cache", done.stderr)
        self.assertEqual([path.name for path in self.folder.iterdir()], [self.file.name])

    def test_a_program_that_is_killed_at_any_time_leaves_a_whole_conversation(self):
        chosen = random.Random(1)
        sizes = set()
        for _ in range(40):
            with subprocess.Popen(self.command("--prompt", "Why?", "--prompt", "Who?", "--prompt", "Where?", tokens=20),
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                process.stdout.read(1)
                time.sleep(chosen.random() * 0.15)
                process.kill()
            if self.file.exists():
                sizes.add(self.file.stat().st_size)
                done = self.ask("And?")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.file.unlink()
        self.assertGreater(len(sizes), 1)

    def test_only_one_program_at_a_time_has_the_file(self):
        terminal = Terminal(*self.command())
        self.addCleanup(terminal.kill)
        terminal.wait_for("> $")
        done = self.ask("Why?")
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (1, "", f"error: {self.file} is in use by another program; end that one, or choose another file\n"))
        terminal.type("\x04")
        terminal.end()
        self.assertEqual(self.ask("Why?").returncode, 0)

    def test_a_full_disk_leaves_the_conversation_before(self):
        def fill_disk():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))

        self.assertEqual(self.ask("Why do you weep?").returncode, 0)
        before = self.file.read_bytes()
        done = self.ask("Where do you live?", preexec_fn=fill_disk)
        self.assertEqual(done.returncode, 1)
        self.assertTrue(done.stdout)
        self.assertTrue(done.stderr.endswith(f"error: {self.file} cannot be saved: File too large\n"), done.stderr)
        self.assertEqual(self.file.read_bytes(), before)
        self.assertEqual([path.name for path in self.folder.iterdir()], [self.file.name])

    def test_at_a_terminal_it_goes_on_and_commands_are_saved(self):
        self.assertEqual(self.ask("Why do you weep?").returncode, 0)
        terminal = Terminal(*self.command(), kind="dumb")
        self.addCleanup(terminal.kill)
        self.assertIn("The conversation has 2 messages.", terminal.wait_for("> $"))
        terminal.type("/undo\r")
        terminal.wait_for("> $")
        terminal.type("/exit\r")
        self.assertEqual(terminal.end(), 0)
        self.assertIn("18 prompt tokens, 17 of them", self.ask("Why do you weep?").stderr)

    def test_a_system_message_that_is_given_replaces_the_saved_one(self):
        self.assertEqual(self.ask("Why?", "--system", "There was a wood.").returncode, 0)
        same, other = self.ask("Who?"), self.ask("Where?", "--system", "There was an old farm with a barn.")
        self.assertRegex(same.stderr, r" [1-9]\d of them from the cache")
        self.assertRegex(other.stderr, r" \d of them from the cache")


class Arguments(Limited):
    """tools/chat with programs in place of the real ones, which print what they got."""

    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for name in ("tools", "steps/143-saved-cache", "build/steps", "models"):
            (self.root / name).mkdir(parents=True)
        for name in ("chat", "lib.sh"):
            (self.root / "tools" / name).write_text((ROOT / "tools" / name).read_text())
        self.program("tools/setup", "exit 0")
        self.program("tools/chat", (ROOT / "tools/chat").read_text())
        self.program("build/steps/143-saved-cache", 'printf "%s\\n" "$@"')
        self.program("bin/meson", "exit 0")
        self.program("bin/ninja", 'echo "no work to do"')
        self.program("tools/download", f'mkdir -p "{self.root}/models/$1"; touch "{self.root}/models/$1/model.gguf"; echo "$1" >&2')

    def program(self, name, text):
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text if text.startswith("#!") else f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    def chat(self, *arguments):
        done = subprocess.run([self.root / "tools/chat", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"}, timeout=50)
        return done.stdout.splitlines(), done

    def test_without_a_model_it_downloads_one_and_says_so(self):
        words, done = self.chat("--prompt", "Hi")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Downloading SmolLM2-135M-Instruct", done.stderr)
        self.assertIn("269 MB", done.stderr)
        self.assertEqual(words[:4], ["--model", "smollm2-135m-instruct", "--context", "4096"])
        self.assertEqual(words[-2:], ["--prompt", "Hi"])
        self.assertIn("--generation-config", words)
        again, done = self.chat()
        self.assertEqual(done.stderr, "")
        self.assertEqual(again[:2], ["--model", "smollm2-135m-instruct"])

    def test_what_is_given_takes_the_place_of_a_default(self):
        words, _ = self.chat("--model=/data/mine", "--dtype", "int8", "--temperature", "0.9", "--max-new-tokens=7")
        given = ["--model=/data/mine", "--dtype", "int8", "--temperature", "0.9", "--max-new-tokens=7"]
        self.assertEqual(words[-len(given):], given)
        # How tokens are chosen is for the program and the model's own file.
        self.assertEqual(words[:-len(given)][:-1], ["--seed"])
        self.assertNotIn(str(self.root / "tools/smollm2_generation.json"), self.chat("--generation-config", "mine.json")[0])

    def test_its_help_names_the_defaults_that_it_uses(self):
        used, _ = self.chat()
        shown, _ = self.chat("--help")
        defaults = used[:used.index("--seed")]
        self.assertIn("In place of the program's defaults below, tools/chat uses "
                      f"{' '.join(defaults)} and a random --seed.", shown)
        # The program's help then has the defaults of these files.
        self.assertEqual(shown[-len(defaults) - 1:], [*defaults, "--help"])

    def test_a_download_that_fails_is_said_and_nothing_runs(self):
        self.program("tools/download", 'echo "No route to any host" >&2; exit 1')
        words, done = self.chat()
        self.assertEqual((words, done.returncode), ([], 1))
        self.assertIn("No route to any host", done.stderr)
        self.assertIn("The model could not be downloaded.", done.stderr)

    def test_a_folder_with_a_part_of_a_download_is_not_complete(self):
        folder = self.root / "models/smollm2-135m-instruct"
        folder.mkdir()
        (folder / "model.safetensors.part").touch()
        (folder / "config.json").touch()
        self.assertIn("Downloading", self.chat()[1].stderr)


if __name__ == "__main__":
    unittest.main()
