"""tools/trace: what is a trace and what is none, and the page that it makes; its numbers against those of a program."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import ROOT, run

BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
START = {"event": "start", "options": {}, "n_positions": 8, "eos_token_id": 1, "prompts": [[0]],
         "vocabulary": ["a", "</script><b>"]}
EVENTS = [START, {"event": "text", "text": 1, "prompt": 0},
          {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0]}]},
          {"event": "logits", "row": 0, "position": 0, "logits": [0.5, 1.5]},
          {"event": "token", "text": 1, "token": 1, "origin": "model"},
          {"event": "end", "text": 1, "finish_reason": "length"}]


def lines(events):
    return "".join(json.dumps(event) + "\n" for event in events)


class Pages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.trace = self.folder / "run.jsonl"

    def refused(self, sentence, *arguments):
        done = run("tools/trace", *(arguments or [self.trace]))
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, "^error: .*" + sentence)
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_all_events_are_in_the_page_and_nothing_ends_its_script(self):
        self.trace.write_text(lines(EVENTS))
        done = run("tools/trace", self.trace)
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (self.folder / "run.jsonl.html").read_text()
        inside = page[page.index("for (const event of [") + 20:page.index("]) show(event)") + 1]
        self.assertEqual(json.loads(inside), EVENTS)
        self.assertNotIn("<", inside)
        self.assertEqual(page.count("</script>"), 2)
        done = run("tools/trace", self.trace, self.folder / "other.html")
        self.assertEqual((self.folder / "other.html").read_text(), page)

    def test_a_trace_that_is_cut_off_is_shown_without_its_last_line(self):
        self.trace.write_text(lines(EVENTS)[:-5])
        done = run("tools/trace", self.trace)
        self.assertEqual(done.returncode, 0)
        self.assertIn("run.jsonl ends within line 6, which is left out", done.stderr)
        self.assertNotIn("finish_reason", (self.folder / "run.jsonl.html").read_text().split("for (const event of")[1])

    def test_what_is_no_trace_is_refused(self):
        self.refused("cannot be read: No such file", self.folder / "nothing")
        self.refused("cannot be read: Is a directory", self.folder)
        for content, sentence in [("", "it has no line"), ("hello\n", "line 1 is no event"), ("[1]\n", "line 1 is no event"),
                                  ("[" * 100_000 + "\n", "line 1 is no event"), ('{"event": []}\n', "line 1 cannot be '..'"),
                                  (lines([{"event": "start"}]), "line 1 has no 'eos_token_id'"),
                                  (lines(EVENTS[1:]), "line 1 cannot be 'text'"), (lines([START, START]), "line 2 cannot be 'start'"),
                                  (lines([START]) + "\n", "line 2 is no event"), (lines([START, {"event": "x"}]), "line 2 cannot be 'x'")]:
            with self.subTest(content[:40]):
                self.trace.write_text(content)
                self.refused(sentence)
        self.trace.write_bytes(b"\xff\xfe")
        self.refused("cannot be read: it is no text")
        self.trace.write_text(lines(EVENTS))
        self.refused("cannot be written: No such file", self.trace, self.folder / "none" / "page.html")
        self.refused("is the trace itself", self.trace, self.folder / "." / "run.jsonl")
        self.assertEqual(self.trace.read_text(), lines(EVENTS))


@unittest.skipUnless(shutil.which("node"), "no Node.js is installed")
class Stages(unittest.TestCase):
    """What the page makes of the logits is what the program chose from."""

    STEP = BUILD / "steps/11-repetition-penalty"

    def test_the_last_stage_has_the_probabilities_that_the_program_shows(self):
        if not self.STEP.exists():
            self.skipTest("step 11 is not built")
        for options in ("--temperature 0.7 --top-k 9", "--top-p 0.8", "--repetition-penalty 1.3 --temperature 1.4 --top-p 0.95",
                        "--presence-penalty 0.5 --frequency-penalty 0.3", "--temperature 0", "--top-k 1", ""):
            with self.subTest(options), tempfile.TemporaryDirectory() as folder:
                trace = Path(folder) / "trace"
                done = subprocess.run([self.STEP, "--prompt", "The fox and the", "--max-new-tokens", "12", "--do-sample", "--seed", "4", "--json",
                                       "--device", "cpu", "--show-candidates", "6", "--trace", trace, *options.split()],
                                      capture_output=True, text=True, timeout=120, check=True)
                candidates = json.loads(done.stdout)["sequences"][0]["candidates"]
                script = (ROOT / "playground/views.js").read_text() + """
                  let text, options, logits;
                  const found = [];
                  for (const line of require("fs").readFileSync(process.argv[2], "utf8").split("\\n").slice(0, -1)) {
                    const event = JSON.parse(line);
                    if (event.event === "start") { text = [...event.prompts[0]]; options = event.options; }
                    if (event.event === "logits") logits = event.logits;
                    if (event.event === "token") { found.push([...stages(logits, text, options).at(-1)[1]]); text.push(event.token); }
                  }
                  console.log(JSON.stringify(found));"""
                path = Path(folder) / "stages.js"
                path.write_text(script)
                shown = json.loads(subprocess.run(["node", path, trace], capture_output=True, text=True, timeout=120, check=True).stdout)
                self.assertEqual(len(shown), 12)
                for probabilities, likeliest in zip(shown, candidates, strict=True):
                    for candidate in likeliest:
                        self.assertAlmostEqual(probabilities[candidate["token_id"]], candidate["probability"], delta=1e-5)
                    self.assertAlmostEqual(sum(probabilities), 1.0, delta=1e-9)


if __name__ == "__main__":
    unittest.main()
