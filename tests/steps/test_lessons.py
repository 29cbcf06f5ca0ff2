"""The command that each README shows below its headline: it runs, it ends, and what it prints shows the lesson.

tests/book/test_replay.py runs most of them and compares each line with what is recorded. Of these the recording is read
here; with STAIRCASE_ALL_STEPS=1 (`tools/test --all`) they run once more."""

import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import unittest

from support import BUILD, ROOT, STEPS, Scratch

sys.path.insert(0, str(ROOT / "docs/book"))
from pages import recorded  # noqa: E402

# What shows the lesson of a step, by its name without the number. Texts are greedy, or drawn with a seed, so they stay.
SHOWS = {
    "plain-loops": r"4096 logits differ by at most [1-9]\.\de-0[5-9]",
    "plain-attention": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "rotary-positions": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "gated-mlp": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "rms-norm": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "grouped-queries": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "qk-norm": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "parallel-blocks": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "scaled-rotation": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "forward-pass": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "tensor-parallel": r"differ by at most [1-9]\.\de-0[5-9]\nrank 0 of 2 keeps[\s\S]*differ by at most [1-9]\.\de-0[5-9]\nrank 0 of 4 keeps",
    "pipeline-parallel": r"16384 logits differ by at most \d\.\de[-+]\d\d[\s\S]*rank 1 of 2: 3 blocks[\s\S]*rank 2 of 3: 2 blocks",
    "greedy-decoding": r"there was a man who had a daughter",
    "eos-handling": r"1\d new tokens[\s\S]*<\|endoftext\|>[\s\S]*100 new tokens",  # one text ends, the other goes on
    "context-window": r"540 new tokens",                                           # of 512 positions
    "temperature": r'" man" +64\.\d %[\s\S]*" man" +1\.\d %',
    "multinomial": r"\[1\][\s\S]*\[2\][\s\S]*\[3\]",
    "top-k": r'" man" +43\.\d %[\s\S]*" little" +27\.\d %',                        # of 10.5 and 6.6 %
    "min-p": r"We bow![\s\S]*Lion lived in the wood",
    "top-p": r'> " time" +100\.0 %',
    "sanity-checks": r"error: --top-p is 50, but it must be",
    "presence-penalty": r"(I have heard of the tricks[\s\S]*){2}Do not try",
    "frequency-penalty": r'" cat" +33\.\d %[\s\S]*" cat" +6\.\d %',
    "repetition-penalty": r"(I have heard of the tricks[\s\S]*){2}eat you up",
    "fp16-bf16": r"weights 22\.\d MiB[\s\S]*weights 11\.\d MiB",
    "kv-cache-dynamic": r"cache 0\.0 MiB\n[\s\S]*MiB copied",
    "kv-cache-static": r"cache 6\.0 MiB\n",
    "kv-cache-fix": r"560 new tokens[\s\S]*560 new tokens",
    "variable-batching": r"\[1\][\s\S]*\[2\][\s\S]*\[3\]",
    "speculative-decoding": r"\d+ of \d+ drafted tokens accepted",
    "benchmark-speculative": r"speed-up +acceptance[\s\S]*bfloat16 +8 ",
    "benchmark-kv-cache": r"none[\s\S]*dynamic[\s\S]*static",
    "cache-drift": r"slide +KL divergence 0\.\d*[1-9]\d* [\s\S]*recompute +KL divergence 0\.0000",
    "attention-sinks": r"all positions +\d+\.\d\d\s+the newest 16 +\d+\.\d\d\s+the first 4, the newest 12 +\d",
    "int8-cache": r"cache 1\.\d MiB\n",
    "int4-cache": r"bfloat16 .*\n[\s\S]*4 bits by 32 ",
    "rotated-cache": r"4 bits by 32 .*\n[\s\S]*4 rotated by 32 ",
    "learn-merges": r' 259 +1509 times  " t" "he"\n',
    "apply-merges": r' 2059  " gra"\n +79  "p"\n',
    "draft-models": r"http://127\.0\.0\.1:\d+",
    "drafts-in-a-batch": r"\n\d+ of [1-9]\d* drafts accepted",
    "priorities": r"priority 0: TTFT .*\n.*priority 1: TTFT ",
    "prompt-lookup": r"\d+ of \d+ drafted tokens accepted",
    "draft-costs": r"a draft token takes 0\.\d+ of the target's",
    "adaptive-drafts": r"tokens per pass of the target",
    "draft-heads": r"[1-9]\d* of \d+ drafted tokens accepted[\s\S]* by the formula",
    "leaving-rows": r"\[1\][\s\S]*\[2\][\s\S]*\[3\]",
    "queue": r"\[1\][\s\S]*\[2\][\s\S]*\[3\]",
    "shared-prefill": r"\[1\][\s\S]*\[2\][\s\S]*\[3\]",
    "stop-sequences": r"able to eat him\n2 prompt tokens",                         # and a full stop
    "held-back": r"watching the wolf, h\n",                                        # and "ad been ve"
    "min-new-tokens": r"60 new tokens",
    "logprobs": r'(-\d+\.\d{4}.*){4}',
    "echo": r'"The" +-\n',                                                         # nothing comes before it
    "perplexity": r"perplexity of prompt 1: 30\.[\s\S]*perplexity of prompt 1: 84\d\.",
    "beam-search": r", who had been[\s\S]*said, \"I",                              # of both the likelier is the second
    "finished-beams": r"lived happily ever after\.",                               # and not "all lived happily together."
    "beam-rows": r"MiB allocated, \d+\.\d MiB copied",
    "n-best": r"\[1\][\s\S]*\[2\][\s\S]*\[3\][\s\S]*\[4\]",
    "length-penalty": r" 2 new tokens[\s\S]* [3-9]\d new tokens",
    "early-stopping": r" 1\d new tokens[\s\S]* 40 new tokens",
    "beam-tree": r"├─",
    "requests": r"\[1\][\s\S]*\[2\][\s\S]*\[3\][\s\S]*\[4\][\s\S]*cache 6\.0 MiB\n",  # of one text
    "continuous-batching": r"\[1\][\s\S]*\[2\][\s\S]*\[3\][\s\S]*\[4\]",
    "arrivals": r"\[1\][\s\S]*\[2\][\s\S]*\[3\][\s\S]*\[4\]",
    "chunked-prefill": r"\[1\][\s\S]*\[2\][\s\S]*\[3\][\s\S]*\[4\]",
    "latencies": r"TTFT in ms: .*\(p50\).*\(p99\); TPOT",
    "serving-timeline": r"rows\.svg: the rows are empty for \d+ % of the time",
    "benchmark-serving": r"static[\s\S]*continuous[\s\S]*chunks of",
    "paged-kv-cache": r"\[1\][\s\S]*\[4\][\s\S]*cache 12\.0 MiB\n",  # and none of it copied
    "block-pool": r"at most \d+ of 64 blocks taken, and [1-9]\d\.\d %",
    "waiting-for-blocks": r"at most \d of 5 blocks taken",
    "preemption": r"[1-9]\d* preemptions?",
    "prefix-caching": r"[1-9]\d* of \d+ tokens of texts that joined were in the cache",
    "prefix-eviction": r"[1-9]\d* of \d+ tokens of texts that joined were in the cache",
    "http-server": r"http://127\.0\.0\.1:\d+",
    "cancellation": r"http://127\.0\.0\.1:\d+",
    "graceful-shutdown": r"http://127\.0\.0\.1:\d+",
    "int8-weights": r"weights 6\.\d MiB",
    "int4-weights": r"weights 4\.\d MiB",
    "quality": r"float32[\s\S]*int8[\s\S]*int4",
    "capacity": r"the knee: from [\d.]+ requests/s on, the queue grows",
    "prompt-tokens": r'" gra"\n +79  "p"\n',
    "special-tokens": r'"<"\n[\s\S]* 4095  "<\|endoftext\|>"\n',
    "chat-template": r'"The"\n[\s\S]*weep\? I am not hungry\."',
    "conversation": r"weep\? I am not hungry[\s\S]*I am a very good fellow",
    "continued-cache": r"18 prompt tokens, 0 of them[\s\S]*59 prompt tokens, 37 of them from the cache",
    "kept-answers": r"99 prompt tokens, 77 of them from the cache",
    "dropped-turns": r"The oldest 4 messages no longer fit[\s\S]*54 prompt tokens, 32 of them from the cache",
    "saved-cache": r"69 prompt tokens, 47 of them[\s\S]*120 prompt tokens, 98 of them from the cache",
    "chat-server": r"http://127\.0\.0\.1:\d+",
    "urgent-requests": r"http://127\.0\.0\.1:\d+",
    "window-layers": r"cache 0\.4 MiB\n",                                         # and not 1.0
    "experts": r"differ by at most [1-9]\.\de-0[5-9][\s\S]* times as fast\n[\s\S]* %  MLP",
    "expert-words": r'block 2, expert 7:  " was" " to"[\s\S]* 8 rows read \d\.\d+ experts; at random they would read 7\.20\n',
    "lora": r"without the adapter: \d+\.\d+\n[\s\S]*with the adapter: \d+\.\d+\n",
    "choices": r'thing to do[\s\S]*" very" +87\.\d %[\s\S]* very old lion\n',
    "regex": r'" " +97\.\d %[\s\S]* 50 years old\.\n[\s\S]*, "I have a daughter[^"]*beautiful\."\n',
    "token-trie": r', "I have a daughter[^"]*beautiful\."\n',
    "json-schema": r'"animal": "fox", "age":\s+30, "friends":[\s\S]*"animal": "fox",\s+"age": 30, "friends":',
    "jump-ahead": r"\.\n[\s\S]*\.\n[\s\S]*\d+ tokens in \d+ passes",
    "tool-calls": r"\[calc\(\d+\+\d+\) = \d{5,}\] birds[\s\S]*\[calc\(\d+\+\d+\) = \d{1,3}\] birds",
    "grammar": r", \(though he was a very clever fellow\)\.\n[\s\S]* [-0-9+*/()]+\.\n",
}
SERVERS = {"http-server", "cancellation", "graceful-shutdown", "chat-server", "urgent-requests", "draft-models"}
REFUSED = {"sanity-checks"}  # its lesson is a refusal
LINES, COLUMNS = 100, 100    # a screen, and two for texts that outgrow the context
PATIENCE = 600


class Lessons(Scratch):
    def test_each_step_says_here_what_its_command_shows(self):
        self.assertEqual(sorted(SHOWS), sorted(step.slug for step in STEPS))

    def test_each_command_shows_its_lesson(self):
        for name in ("bench", "models", "tests"):  # what benchmarks write stays in this folder
            (self.folder / name).symlink_to(ROOT / name)
        known = {} if os.environ.get("STAIRCASE_ALL_STEPS") else {
            command.text: recorded.plain(command.recording() or "") for command in recorded.replayed()}
        for step in STEPS:
            program = BUILD / "steps" / step.name
            if not program.is_file():
                continue  # the server, without Boost
            with self.subTest(step.name):
                shown = ""
                for line in step.command():
                    if line in known:
                        shown += known[line]
                        continue
                    words = shlex.split(line)[2:]
                    status, output = self.server(program, words) if step.slug in SERVERS else self.ended(program, words)
                    self.assertEqual(status, 2 if step.slug in REFUSED else 0, output)
                    shown += output
                self.assertRegex(shown, SHOWS[step.slug])
                lines = sum(max(1, -(-len(line) // COLUMNS)) for line in shown.splitlines())
                self.assertLessEqual(lines, LINES * len(step.command()))

    def ended(self, program, words):
        done = subprocess.run([program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, cwd=self.folder, timeout=PATIENCE)
        return done.returncode, done.stdout

    def test_a_terminal_without_colours_has_the_same_text(self):
        step = next(step for step in STEPS if step.name.endswith("speculative-decoding"))
        command = [BUILD / "steps" / step.name, *shlex.split(step.command()[0])[2:]]
        coloured, plain = (self.on_a_terminal(command, NO_COLOR=value) for value in ("", "1"))
        self.assertIn("\033[32m", coloured)
        self.assertEqual(re.sub(r"\033\[\d+m", "", coloured), plain)

    def on_a_terminal(self, command, **environment):
        """What it prints on standard output, where that is a terminal."""
        main, side = pty.openpty()
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=side, stderr=subprocess.DEVNULL,
                              cwd=self.folder, env={**os.environ, **environment}) as process:
            os.close(side)
            output = b""
            try:
                while part := os.read(main, 65536):
                    output += part
            except OSError:
                pass  # Linux's way to say that the other side is closed
            os.close(main)
        self.assertEqual(process.returncode, 0, output)
        return output.decode()

    def server(self, program, words):
        """It serves until it is stopped; the port may be taken here."""
        process = subprocess.Popen([program, *words, "--port", "0"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True, cwd=self.folder)
        try:
            line = process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            return process.wait(60), line
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


if __name__ == "__main__":
    unittest.main()
