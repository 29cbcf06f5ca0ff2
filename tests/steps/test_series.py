"""The steps as a tree: what each one may change and weigh, what has landed, how its README is made, and that a new
option changes nothing while it is not used."""

import functools
import json
import re
import unittest

from support import BUILD, PAIRS, ROOT, STEPS, call, hunks, series

from mistakes import MISTAKES, planted
from step_commands.check import lacking_option

# The files that each lesson changes or adds. Every other file is the same, byte for byte, as in the step that it
# continues.
LESSON = {
    "01-greedy-decoding": "generate.h main.cpp stopping.h",
    "02-eos-handling": "generate.h stopping.h",
    "03-context-window": "generate.h",
    "04-temperature": "generate.h main.cpp sampling.h text_options.h",
    "05-multinomial": "generate.h main.cpp sampling.h",
    "06-top-k": "sampling.h",
    "07-top-p": "sampling.h",
    "08-sanity-checks": "generate.h main.cpp sampling.h stopping.h",
    "09-presence-penalty": "generate.h sampling.h",
    "10-frequency-penalty": "sampling.h",
    "11-repetition-penalty": "sampling.h",
    "12-fp16-bf16": "main.cpp memory_estimate.h",
    "13-kv-cache-dynamic": "dynamic_kv_cache.h generate.h main.cpp memory_estimate.h",
    "14-kv-cache-static": "main.cpp static_kv_cache.h",
    "15-kv-cache-fix": "generate.h main.cpp overflow.h static_kv_cache.h text_options.h",
    "16-variable-batching": "batches.h generate.h main.cpp overflow.h static_kv_cache.h",
    "17-speculative-decoding": "main.cpp speculative.h",
    "18-benchmark-speculative": "benchmark.h main.cpp",
    "19-benchmark-kv-cache": "benchmark.h benchmark_kv_cache.h main.cpp",
    "20-cache-drift": "drift.h main.cpp",
    "24-attention-sinks": "main.cpp sink_cache.h streaming.h",
    "21-prompt-lookup": "main.cpp prompt_lookup.h speculative.h",
    "22-draft-costs": "main.cpp report.h speculative.h",
    "23-adaptive-drafts": "main.cpp speculative.h",
    "25-draft-heads": "head_drafter.h main.cpp",
    "30-leaving-rows": "generate.h row.h",
    "31-queue": "batches.h generate.h row.h",
    "32-shared-prefill": "batches.h generate.h",
    "33-stop-sequences": "batches.h generate.h main.cpp row.h stop_sequences.h",
    "34-held-back": "row.h stop_sequences.h",
    "35-min-new-tokens": "min_new_tokens.h row.h",
    "36-logprobs": "logprobs.h row.h",
    "37-echo": "echo.h main.cpp scoring.h",
    "38-perplexity": "echo.h scoring.h",
    "40-beam-search": "batches.h beam_search.h main.cpp",
    "41-finished-beams": "batches.h beam_search.h",
    "42-beam-rows": "batches.h beam_search.h main.cpp",
    "43-n-best": "batches.h beam_search.h main.cpp",
    "44-length-penalty": "beam_search.h",
    "45-early-stopping": "beam_search.h",
    "46-beam-tree": "batches.h beam_search.h beam_tree.h main.cpp",
    "50-requests": "batches.h main.cpp",
    "51-continuous-batching": "batches.h main.cpp scheduler.h",
    "52-arrivals": "arrivals.h batches.h main.cpp",
    "53-chunked-prefill": "batches.h main.cpp scheduler.h",
    "54-latencies": "batches.h latencies.h",
    "55-benchmark-serving": "benchmark_serving.h main.cpp",
    "56-serving-timeline": "batches.h main.cpp timeline.h",
    "60-paged-kv-cache": "batches.h paged_engine.h paged_kv_cache.h",
    "61-block-pool": "batches.h block_pool.h paged_kv_cache.h",
    "62-waiting-for-blocks": "batches.h main.cpp paged_engine.h paged_kv_cache.h",
    "63-preemption": "batches.h paged_engine.h preemption.h",
    "64-prefix-caching": "batches.h block_pool.h paged_engine.h paged_kv_cache.h",
    "65-prefix-eviction": "block_pool.h paged_kv_cache.h prefix_index.h",
    "66-http-server": "main.cpp service.h",
    "67-cancellation": "main.cpp service.h",
    "68-graceful-shutdown": "service.h",
    "70-int8-weights": "main.cpp quantize.h",
    "71-int4-weights": "main.cpp quantize_int4.h",
    "72-quality": "main.cpp quality.h",
    "69-capacity": "capacity.h main.cpp",
    "80-plain-loops": "main.cpp plain_model.h",
    "81-plain-attention": "main.cpp plain_model.h",
    "82-rotary-positions": "plain_model.h",
    "83-gated-mlp": "plain_model.h",
    "84-rms-norm": "plain_model.h",
    "85-grouped-queries": "plain_model.h",
    "86-qk-norm": "plain_model.h",
    "87-forward-pass": "forward_pass.h main.cpp",
    "88-parallel-blocks": "plain_model.h",
    "89-scaled-rotation": "plain_model.h",
    "90-prompt-tokens": "main.cpp prompt_tokens.h",
    "91-special-tokens": "main.cpp special_tokens.h",
    "92-chat-template": "chat_prompt.h main.cpp",
    "93-conversation": "conversation.h generate.h main.cpp",
    "94-continued-cache": "conversation.h main.cpp",
    "95-kept-answers": "conversation.h known_tokens.h",
    "96-dropped-turns": "conversation.h dropped_turns.h",
    "39-min-p": "main.cpp min_p.h",
    "98-tensor-parallel": "forward_pass.h main.cpp",
    "99-pipeline-parallel": "main.cpp pipeline.h",
    "97-chat-server": "cached_prompts.h chat.h main.cpp service.h",
    "100-choices": "allowed_tokens.h choices.h main.cpp",
    "101-regex": "main.cpp regex.h",
    "102-token-trie": "main.cpp token_masks.h",
    "103-grammar": "grammar.h main.cpp",
    "104-json-schema": "main.cpp object_members.h",
    "105-jump-ahead": "jump_ahead.h main.cpp",
    "106-tool-calls": "jump_ahead.h main.cpp tools.h",
    "110-window-layers": "main.cpp ring_kv_cache.h",
    "111-experts": "plain_model.h",
    "112-expert-words": "expert_words.h main.cpp plain_model.h",
    "113-lora": "main.cpp plain_model.h",
    "120-priorities": "batches.h main.cpp priorities.h",
    "121-drafts-in-a-batch": "batches.h drafts.h main.cpp",
    "122-urgent-requests": "main.cpp service.h",
    "123-draft-models": "main.cpp service.h",
    "130-learn-merges": "main.cpp merges.h",
    "131-apply-merges": "main.cpp plain_encoder.h",
    "140-int8-cache": "main.cpp rounded_kv_cache.h",
    "141-int4-cache": "few_bits.h rounded_kv_cache.h",
    "142-rotated-cache": "rotation.h rounded_kv_cache.h",
    "143-saved-cache": "conversation.h dropped_turns.h main.cpp",
}
HEADINGS = ["The idea", "The task", "How to check it", "Afterwards", "What to measure", "Exercises", "Sources"]
TITLES = {"02-eos-handling": "End of text"}  # where the title has not the words of the folder's name
WORDS, COLUMNS = 600, 120  # the most of a README; commands, tables and the line of landed files aside
LONG = re.compile(r"\b(this|the) (step|lesson) is (\w+ )?(long|longer|large|larger|big|bigger)\b|longer than most", re.IGNORECASE)

# What a step adds to the command line: how to keep it off, and how to see that it does something. Those that continue a
# step keep its options.
OFF = {"02-eos-handling": ["--ignore-eos"]}
ON = {
    "04-temperature": ["--temperature", "0.7"],  # of the greedy choice nothing changes
    "05-multinomial": ["--do-sample", "--seed", "7"],
    "06-top-k": ["--top-k", "5"],
    "07-top-p": ["--top-p", "0.5"],
    "09-presence-penalty": ["--presence-penalty", "1.5"],
    "10-frequency-penalty": ["--frequency-penalty", "0.5"],
    "11-repetition-penalty": ["--repetition-penalty", "1.3"],
    "12-fp16-bf16": ["--dtype", "float16"],  # the format of the file: nothing is rounded
    "13-kv-cache-dynamic": ["--use-cache"],
    "15-kv-cache-fix": ["--on-overflow", "recompute"],  # the texts are too short to need it
    "17-speculative-decoding": ["--num-speculative-tokens", "2"],  # without a draft model
    "31-queue": ["--max-batch-size", "1"],
    "33-stop-sequences": ["--stop", "the"],  # in one token here; otherwise 28 shows less than 27
    "35-min-new-tokens": ["--min-new-tokens", "30"],  # no text of so few tokens ends earlier
    "36-logprobs": ["--logprobs", "2"],
    "70-int8-weights": ["--show-rounding"],
    "140-int8-cache": ["--cache-dtype", "int8"],
    "80-plain-loops": ["--plain-loops"],
    "90-prompt-tokens": ["--show-tokens"],
    "91-special-tokens": ["--special-tokens"],  # no prompt has a marker
    "92-chat-template": ["--chat", "--chat-template", ROOT / "models/tales-chat.jinja"],
    "39-min-p": ["--min-p", "0.3"],
    "100-choices": ["--choice", " fox", "--choice", " very old lion"],
    "101-regex": ["--regex", " [a-z]{3,9}\\."],
    "103-grammar": ["--grammar", ROOT / "bench/talk.gbnf"],
    "104-json-schema": ["--json-schema", ROOT / "bench/animal.schema.json"],
    "38-perplexity": ["--echo"],  # of 37-echo, but there no prompt has a perplexity
}
# Whose options a step gives another meaning: from here on, these penalties do not count the prompt.
NEW_MEANING = {"31-queue": ("09-presence-penalty", "10-frequency-penalty")}
SAME_TEXT = {"04-temperature", "12-fp16-bf16", "13-kv-cache-dynamic", "15-kv-cache-fix", "17-speculative-decoding", "31-queue",
             "35-min-new-tokens", "70-int8-weights", "80-plain-loops", "90-prompt-tokens",
             "91-special-tokens"}
ENDS = {"100-choices", "101-regex", "102-token-trie", "103-grammar", "104-json-schema", "105-jump-ahead", "106-tool-calls"}  # whose option decides where a text ends, so it excludes --ignore-eos
OTHERS = {"66-http-server", "67-cancellation", "68-graceful-shutdown", "69-capacity", "93-conversation", "94-continued-cache",
          "95-kept-answers", "96-dropped-turns", "97-chat-server", "122-urgent-requests", "123-draft-models", "143-saved-cache"}  # whose program does something other than continue a text
# Whose plain loops compute another family than that of tales-6m, which these tests continue texts with.
OTHER_FAMILY = {"82-rotary-positions", "83-gated-mlp", "84-rms-norm", "85-grouped-queries", "86-qk-norm",
                "87-forward-pass", "88-parallel-blocks", "89-scaled-rotation", "98-tensor-parallel", "111-experts", "112-expert-words"}
PROMPTS = ("Once upon a time", "The fox said to the crow:", "", "A Lion and a Mouse.\n\n")


@functools.lru_cache(maxsize=None)
def sequences(step, prompt, *options):
    """What the step's program makes of a prompt."""
    done = call(BUILD / "steps" / step, "--model", "tales-6m", "--device", "cpu", "--json", "--max-new-tokens", "30",
                "--prompt", prompt, *options)
    if done.returncode:
        raise AssertionError(f"{step} {' '.join(options)}: {done.stderr}")
    return json.loads(done.stdout)["sequences"]


def used(step):
    """{an #include's text: the file} of the step's code and of all that it includes in the step and in
    common/decoding."""
    found, waiting = {}, [path for path in step.files().values() if path.suffix in (".h", ".cpp")]
    while waiting:
        path = waiting.pop()
        for name in series.includes(path):
            beside = path.parent / name  # where the compiler looks first
            file = beside if beside.is_file() else step.resolve(name)
            if (name, file) not in found.items():
                found[name] = file
                if file and ("steps" in file.parts or file.is_relative_to(ROOT / "common/decoding")):
                    waiting.append(file)
    return found


class Series(unittest.TestCase):
    def test_each_step_is_in_the_build_and_declared_here(self):
        self.assertEqual([step.number for step in STEPS[:series.CHAIN]], [f"{number:02}" for number in range(1, series.CHAIN + 1)])
        self.assertEqual(len({step.number for step in STEPS}), len(STEPS))
        self.assertEqual(set(LESSON), {step.name for step in STEPS})
        listed = re.findall(r"^  '(\d\d+-[^']+)',$", (series.ROOT / "steps/meson.build").read_text(), re.MULTILINE)
        self.assertEqual(listed, [step.name for step in STEPS])

    def test_the_default_tests_run_the_first_step_and_those_that_no_other_continues(self):
        continued = {step.parent for step in STEPS}
        last = [step.number for step in STEPS if step not in continued]
        listed = re.search(r"^branch_ends = \[(.*)\]$", (ROOT / "tests/meson.build").read_text(), re.MULTILINE)[1]
        self.assertEqual(re.findall(r"\d\d+", listed), ["01", *last])

    def test_a_plain_pass_that_refuses_a_model_names_a_step_that_there_is(self):
        named = re.findall(r'"[^"]*\b(\d\d+-[a-z-]+)', (ROOT / "common/model/plain_weights.cpp").read_text())
        self.assertGreater(len(named), 5)
        self.assertLessEqual(set(named), {step.name for step in STEPS})

    def test_the_tens_of_a_number_name_the_branch(self):
        """But 98 and 99, which the last branch has of the nineties."""
        def tens(step):
            return "98 and 99" if step.number in ("98", "99") else step.number[:-1]

        of_tens = {tens(step): step.branch() for step in STEPS if int(step.number) > series.CHAIN}
        self.assertEqual(len(set(of_tens.values())), len(of_tens))
        for step in STEPS[series.CHAIN:]:
            self.assertEqual(step.branch(), of_tens[tens(step)], step.name)

    def test_a_step_changes_what_its_lesson_is_about_and_nothing_else(self):
        """What is not changed is the same, byte for byte, or has landed, or is needed no longer."""
        for step in STEPS:
            with self.subTest(step.name):
                files = step.lesson()
                changed = sorted(name for name in series.changes(step.parent, step) if name in files)
                self.assertEqual(" ".join(changed), LESSON[step.name])
                missing = [name for name in step.parent.lesson() if name not in files] if step.parent else []
                for name in missing:
                    self.assertTrue(name in step.visible() or name not in used(step), f"{name} is gone and still included")

    def test_lessons_are_short_and_folders_are_light(self):
        for what, found, most, where in series.limits({step: series.lines(step)[0] for step in STEPS}):
            with self.subTest(what):
                self.assertLessEqual(found, most, f"{what}: {', '.join(step.name for step in where)}")

    def test_each_file_that_is_included_is_there_once(self):
        for step in STEPS:
            with self.subTest(step.name):
                places = {}
                for name, file in used(step).items():
                    self.assertIsNotNone(file, f'{step.name} includes "{name}", but that is neither in its folder nor landed '
                                               "before it")
                    self.assertNotIn(name.removeprefix("common/decoding/") if "/" in name else "", step.library,
                                     f'"{name}" has landed and is included by its name alone')
                    if file.is_relative_to(step.folder) or file.is_relative_to(ROOT / "common/decoding"):
                        places.setdefault(file.name, set()).add(file)
                for name in step.lesson():  # what the compiler would find second
                    if (ROOT / "common/decoding" / name).is_file() and (name not in step.library or name in step.visible()):
                        places.setdefault(name, set()).update({step.folder / name, ROOT / "common/decoding" / name})
                self.assertEqual({name: files for name, files in places.items() if len(files) > 1}, {})

    def test_a_landed_file_is_that_of_its_owner(self):
        lines = [line for line in (ROOT / series.MANIFEST).read_text().splitlines() if line and not line.startswith("#")]
        self.assertEqual(lines, sorted(lines), "the manifest is sorted by file")
        for name, landed in STEPS[0].library.items():
            owner = landed.owner
            with self.subTest(name):
                content = landed.path.read_bytes()
                self.assertEqual(content, (owner.folder / name).read_bytes(), f"common/decoding/{name} is not that of {owner.name}")
                if owner.parent and name in owner.parent.files():
                    self.assertNotEqual(content, (owner.parent.folder / name).read_bytes(),
                                        f"{owner.name} does not change {name}: an earlier step is its owner")
                for step in STEPS:
                    if name in step.files() and step is not owner and step not in owner.ancestors():
                        if owner not in step.ancestors():  # it branched off before: it has what was there,
                            # or what its own branch has made of it
                            line = [one for one in (step, *step.ancestors()) if one not in owner.ancestors()]
                            own = next((one for one in line if name in LESSON[one.name].split()), None)
                            if own:
                                self.assertEqual((step.folder / name).read_bytes(), (own.folder / name).read_bytes(),
                                                 f"{step.name} changes {name}, which {own.name} has changed")
                                continue
                            before = [(one.folder / name).read_bytes() for one in owner.ancestors() if name in one.files()]
                            self.assertIn((step.folder / name).read_bytes(), before,
                                          f"{step.name} changes {name}, and so does {owner.name}, which it does not continue")
                            continue
                        self.assertEqual(content, (step.folder / name).read_bytes(), f"{step.name} changes {name}, so it is its owner")
                        self.assertNotIn(name, step.visible(), f"{step.name} needs no {name}: it has landed")

    def test_a_landed_file_of_several_lessons_keeps_the_promises_of_an_earlier_one(self):
        """tests/meson.build runs the checks of earlier steps with it, wherever these still fit."""
        entries = re.findall(r"^  '(\d\d+-[\w-]+)': \[(.*)\],$", (ROOT / "tests/meson.build").read_text(), re.MULTILINE)
        checked = {name for _, names in entries for name in re.findall(r"'([\w.]+)'", names)}
        self.assertLessEqual({step for step, _ in entries}, {step.name for step in STEPS})
        # What a row of the cache has changed in every call of 15; options alone.
        do_not_fit = {"overflow.h", "text_options.h"}
        for name, landed in STEPS[0].library.items():
            versions = {(step.folder / name).read_bytes() for step in (landed.owner, *landed.owner.ancestors())
                        if (step.folder / name).is_file()}
            self.assertTrue(len(versions) == 1 or name in checked | do_not_fit, name)

    def test_no_check_reads_a_statistic_that_may_be_missing_from_a_constant(self):
        """What nlohmann's operator[] gives of a constant without that name is undefined; of others it is null."""
        for step in STEPS:
            text = (step.folder / "test.cpp").read_text()
            self.assertIsNone(re.search(r'const auto&? \w+ = .*\["stats"\];', text), step.name)

    def test_the_library_knows_neither_the_program_nor_what_has_not_landed(self):
        rooms = ("common/base/", "common/model/", "common/text/", "kernels/")
        for landed in STEPS[0].library.values():
            for name in series.includes(landed.path):
                with self.subTest(f"{landed.name} includes {name}"):
                    if name.startswith(rooms):
                        self.assertTrue((ROOT / name).is_file())
                    elif name not in STEPS[0].library:
                        self.assertEqual(name.rpartition("/")[0], "common/decoding")
                        self.assertTrue((ROOT / name).is_file())

    def test_no_product_of_sizes_is_an_int(self):
        """Rows times vocabulary, prompts times copies and the like may be more than an int holds."""
        wrong = {
            r"\bint vocab_size = ": "vocab_size is multiplied by rows: it needs 64 bits",
            r"\bint [^;\n]*\bn = search\.num_beams": "num_beams is multiplied by 2: it needs 64 bits",
            r"static_cast<int>\(prompts\.size\(\)\) \*": "prompts times copies: product() refuses what is too much",
            r"(slots|max_batch_size) \* blocks_for": "blocks of all slots: product() refuses what is too much",
            r"(?<!1LL \* )kBlockSize \* blocks\b|\bblocks \* kBlockSize": "positions of all blocks: they need 64 bits",
        }
        files = [path for step in STEPS for path in step.files().values() if path.suffix in (".h", ".cpp") and path.name != "test.cpp"]
        for path in files + [landed.path for landed in STEPS[0].library.values()]:
            for pattern, reason in wrong.items():
                if path.name in ("generate.h", "beam_search.h", "batches.h", "main.cpp") or "paged" in path.name:
                    with self.subTest(str(path.relative_to(ROOT)), rule=pattern):
                        self.assertIsNone(re.search(pattern, path.read_text()), reason)

    def test_an_echo_has_the_log_probabilities_that_the_texts_have(self):
        """The lesson of step 37 and its checks; a later program calls it in the same way."""
        echoing = 0
        for step in STEPS:
            main = (step.folder / "main.cpp").read_text()
            if '#include "echo.h"' in main and "options.logprobs" in main:
                echoing += 1
                with self.subTest(step.name):
                    self.assertIn("echo(model, prompts, shown, options.logprobs.count.value_or(0), output);", main)
        self.assertGreater(echoing, 20)

    def test_each_step_has_checks_of_its_own(self):
        tests = {}
        for step in STEPS:
            with self.subTest(step.name):
                self.assertTrue((step.folder / "test.cpp").is_file())
                text = (step.folder / "test.cpp").read_text()
                self.assertIn("TEST_CASE(", text)
                self.assertNotIn(text, tests, f"the same as {tests.get(text)}")
                tests[text] = step.name

    def test_each_step_has_three_mistakes_or_more_that_its_task_invites(self):
        for step in STEPS:
            with self.subTest(step.name):
                self.assertGreaterEqual(len(MISTAKES.get(step.name, [])), 3)
                planted(step.lesson(), MISTAKES[step.name])  # each is in the code

    def test_readmes(self):
        for step in STEPS:
            with self.subTest(step.name):
                text = step.readme()
                self.assertTrue(text, "there is no README.md")
                self.assertEqual(re.findall(r"^## (.+)$", text, re.MULTILINE), HEADINGS)
                for heading in HEADINGS:
                    self.assertTrue(step.section(heading), f"nothing below '{heading}'")
                self.assertEqual(text.splitlines()[0], f"# {step.heading()}")
                self.assertTrue(step.heading().startswith(f"{step.number} "))
                self.assertRegex(text, r"\A# .+\n\n\*.+[.]\*\n\n", "a summary in italics below the title")
                said = [line for line in step.introduction().splitlines()[3:] if line and not line.startswith("    ")]
                self.assertEqual(said, step.relations(), "below the summary belongs, and nothing else:\n\n" +
                                 "\n".join(step.relations()))
                end = step.included()
                self.assertEqual(text.splitlines()[-len(end) - 1:] if end else [], ["", *end] if end else [],
                                 "at the end of the page belongs:\n\n" + "\n".join(end))
                self.assertEqual(text.count("<details>"), 1 if end else 0)
                self.assertTrue(step.command(), "below the headline belongs the command that shows the lesson")
                for line in step.command():
                    self.assertRegex(line, rf"^tools/run {step.number} -")
                self.assertIsNone(LONG.search(" ".join(text.split())), "a step that is long is cut finer instead")
                title = step.heading().removeprefix(f"{step.number} ")
                if step.name in TITLES:
                    self.assertEqual(title, TITLES[step.name])
                else:
                    words = [word.lower() for word in re.findall(r"\w+", title)]
                    for word in step.name.split("-")[1:]:
                        self.assertIn(word, words)
                for word in ("test", "run"):
                    self.assertIn(f"tools/{word} {step.number}", step.section("How to check it"))
                for number in re.findall(r"tools/(?:test|run) (\d\d+)", text):
                    self.assertLessEqual(int(number), int(step.number), "a command of a later step")

    def test_readmes_are_short_and_say_how_to_practise(self):
        for step in STEPS:
            with self.subTest(step.name):
                prose = re.sub(r"^```.*?^```$", "", step.readme(), flags=re.MULTILINE | re.DOTALL)
                made = (*step.relations(), *step.included())
                lines = [line for line in prose.splitlines()
                         if not line.startswith(("    ", "|", "#", "![", "<!--")) and line not in made]
                words = [word for word in re.sub(r"\]\([^)]*\)", "]", " ".join(lines)).split() if re.search(r"[^\W\d_]", word)]
                self.assertLessEqual(len(words), WORDS)
                self.assertEqual([line for line in lines if len(line) > COLUMNS and "](" not in line], [])
                for command, section in (("practice", "How to check it"), ("check", "How to check it"), ("diff", "Afterwards")):
                    self.assertIn(f"tools/step {command} {step.number}", step.section(section))

    def test_the_code_in_a_readme_is_code_of_the_step_with_lines_that_it_adds(self):
        for step in STEPS:
            shown, added = hunks.hunks(step.readme()), hunks.added(step)
            with self.subTest(step.name):
                self.assertEqual(len(shown), step.readme().count("```cpp"), "above each code belongs a comment with a "
                                 "sentence below it:\n\n<!-- from FILE -->\nA sentence:\n\n```cpp")
                self.assertEqual(step.readme().count("<!-- from"), len(shown))
                self.assertIn(len(shown), (1, 2), "the lines that are the idea; the diff has the rest")
            for hunk in shown:
                with self.subTest(step.name, hunk=hunk.told):
                    self.assertIn(hunk.file, step.lesson())
                    try:
                        numbers = hunk.numbers(step.lesson()[hunk.file].read_text(encoding="utf-8"))
                    except ValueError as line:
                        self.fail(f"{hunk.file} does not have this line where the README shows it: {line}")
                    self.assertTrue(added.get(hunk.file, set()) & set(numbers), "the step adds none of these lines")
                    self.assertLessEqual(len(hunk.lines), 15)
                    self.assertTrue(hunk.told.endswith(":"), hunk.told)

    def test_code_that_a_step_does_not_have_is_found(self):
        text = "int a() {\n  f();\n  g();\n\n  h();\n}\n"
        for shown, numbers in (("f();\ng();", [2, 3]), ("  g();\n\n  h();", [3, 4, 5]),
                               ("int a() {\n  // …\n  h();\n}", [1, None, 5, 6])):
            self.assertEqual(hunks.Hunk("a.h", "", shown.splitlines()).numbers(text), numbers)
        for shown, line in (("f();\nh();", "h();"), ("g();\nf();", "f();"), ("f();\n  g();", "  g();"),
                            ("g();\n// …\nf();", "f();"), ("f();\n// …\ng();", "g();"), ("i();", "i();")):
            with self.assertRaisesRegex(ValueError, "^" + re.escape(line) + "$"):
                hunks.Hunk("a.h", "", shown.splitlines()).numbers(text)

    def test_an_option_has_the_same_default_in_every_step(self):
        # {option: the steps whose default differs, since the words of the step itself say so}
        apart = {"--do-sample": {92, 93, 94, 95, 96, 143},  # chats sample
                 "--max-batch-size": {69}, "--seed": {69},  # of a simulated server
                 "--prefill-chunk": {67, 68, 97, 122, 123}}  # servers never let one prompt delay all others
        defaults = {}  # {option: {default: [number of a step]}}
        for step in STEPS:
            done = call(BUILD / "steps" / step.name, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            for option, words in re.findall(r"^ +(?:-\w, *)?(--[\w-]+)((?:[^\n ]| (?! ))*)", done.stdout, re.MULTILINE):
                default = re.search(r"=([^\s=]+)$", words.strip())
                if int(step.number) not in apart.get(option, ()):
                    of_option = defaults.setdefault(option, {})
                    of_option.setdefault(default.group(1) if default else None, []).append(int(step.number))
        self.assertEqual(set(defaults["--max-new-tokens"]), {"100"})
        self.assertGreater(sum(default != {None: default.get(None)} for default in defaults.values()), 20)
        for option, of_option in defaults.items():
            with self.subTest(option):
                self.assertEqual(len(of_option), 1, of_option)

    def test_every_number_in_the_help_shows_its_range(self):
        for step in STEPS:
            if int(step.number) < 8:
                continue
            with self.subTest(step.name):
                done = call(BUILD / "steps" / step.name, "--help")
                self.assertEqual(done.returncode, 0, done.stderr)
                numbers = re.findall(r"^ +(--[\w-]+) (?:N|X|N,N|N\|auto)( \([^\n)]+\))?(?=[ =\n])", done.stdout, re.MULTILINE)
                self.assertIn("--threads" if step.name in OTHERS else "--max-new-tokens", [name for name, _ in numbers])
                self.assertEqual([name for name, possible in numbers if not possible], [])

    def test_the_solution_of_each_step_offers_every_option_that_its_check_requires(self):
        for step in STEPS:
            with self.subTest(step.name):
                self.assertIsNone(lacking_option(step, BUILD / "steps" / step.name))

    def test_what_is_new_changes_nothing_while_it_is_off(self):
        for before, after in PAIRS:
            if after.name in OTHERS:
                continue
            line = [after, *after.ancestors()][::-1]
            used = [option for step in line[:-1] if step.name not in NEW_MEANING.get(after.name, ()) and step.name not in ENDS
                    for option in OFF.get(step.name, []) + ON.get(step.name, [])
                    if option != "--plain-loops" or after.name not in OTHER_FAMILY]
            for prompt in PROMPTS:
                with self.subTest(f"{before.name} and {after.name}", prompt=prompt, options=" ".join(used)):
                    self.assertEqual(sequences(after.name, prompt, *used, *OFF.get(after.name, [])),
                                     sequences(before.name, prompt, *used))

    def test_in_integers_every_step_says_the_same(self):
        """Whatever its cache, its drafts and its rows are: a row's sums depend on no other row."""
        drafts = {"17-speculative-decoding": ["--draft-model", "tales-1m"]}
        names = [step.name for step in STEPS if int(step.number) >= 12 and step.name not in OTHERS]
        for dtype, prompt in zip(["int8", "int4"], PROMPTS):
            texts = {name: [text["token_ids"] for text in sequences(name, prompt, "--dtype", dtype, *drafts.get(name, []))]
                     for name in names}
            for name in names:
                with self.subTest(f"{name}, {dtype}: {prompt!r}"):
                    self.assertEqual(texts[name], texts[names[0]])

    def test_what_is_new_does_something_when_it_is_on(self):
        """Otherwise the test above could not fail."""
        for name, on in ON.items():
            sample = ([] if name in ENDS else ["--ignore-eos"]) + (["--do-sample", "--seed", "7"] if int(name.partition("-")[0]) > 5 else [])
            off = [sequences(name, prompt, *sample) for prompt in PROMPTS]
            changed = [sequences(name, prompt, *sample, *on) for prompt in PROMPTS]
            with self.subTest(name):
                (self.assertEqual if name in SAME_TEXT else self.assertNotEqual)(off, changed)


if __name__ == "__main__":
    unittest.main()
