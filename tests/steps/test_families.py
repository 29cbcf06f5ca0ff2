"""Every step continues texts by every family of models: greedy texts of transformers, from safetensors and from
GGUF."""

import functools
import gzip
import json
import re
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

from support import BUILD, PAIRS, ROOT, STEPS, call

sys.path.insert(0, str(ROOT / "tests"))
from chosen import chosen, touched  # noqa: E402

FAMILIES = ROOT / "tests/reference/families"
FILES = ROOT / "tests/reference/gguf-families"
OTHERS = {"66-http-server", "67-cancellation", "68-graceful-shutdown", "69-capacity", "93-conversation", "94-continued-cache",
          "95-kept-answers", "96-dropped-turns", "97-chat-server", "122-urgent-requests", "123-draft-models", "143-saved-cache"}  # whose program does something other than continue a text
# Where another kind of program begins, and the options that a lesson replaces.
OTHER_PROGRAMS = {"66-http-server", "69-capacity", "93-conversation"}
REPLACED_OPTIONS = {"24-attention-sinks": {"--drift"}, "25-draft-heads": {"--max-matching-ngram-size", "--prompt-lookup-num-tokens"},
                    "98-tensor-parallel": {"--plain-loops"}, "101-regex": {"--choice"}, "103-grammar": {"--regex"},
                    "104-json-schema": {"--grammar"}}
NEAR = 0.002  # of two logits that are this close either may be the larger one


# The values that options take, in the words of an error message; other options take any text.
RANGES = {
    "a whole number of 0 or more": "--common-tokens --max-new-tokens --max-queue --min-new-tokens --patience --seed --show-candidates",
    "a whole number of 1 or more":
        "--benchmark-lengths --context --kv-blocks --max-batch-size --max-matching-ngram-size --max-per-key --micro-batches --new-tokens "
        "--num-beams --num-return-sequences --prefill-chunk --prompt-tokens --rates --refill --repetitions --sinks --top-k",
    "a whole number of 2 or more": "--window",
    "a whole number between 0 and 20": "--logprobs",
    "a whole number between 0 and 10000": "--merges",
    "a whole number between 0 and 65535": "--port",
    "a whole number between 1 and 16": "--most-speculative-tokens --num-speculative-tokens",
    "a whole number between 1 and 64": "--compare-ranks --prompt-lookup-num-tokens --ranks --replicas",
    "a whole number between 1 and 1024": "--threads",
    "a whole number between 1 and 1000000": "--num-requests",
    "a number of 0 or more": "--link-us --temperature",
    "a number above 0": "--link-gbit --repetition-penalty",
    "a number above 0 and at most 1": "--top-p",
    "a number between 0 and 1": "--min-p",
    "a number between -2 and 2": "--frequency-penalty --presence-penalty",
    "a number between -10 and 10": "--length-penalty",
    "one of auto, cpu, cuda": "--device",
    "one of float32, float16, bfloat16, int8, int4": "--dtype",
    "one of auto, float32, float16, bfloat16, int8, int4": "--cache-dtype",
    "one of slide, recompute": "--on-overflow",
    "one of false, true, never": "--early-stopping",
}
OWN_RANGES = {("69-capacity", "--max-batch-size"): "a whole number between 1 and 64",
              **{(step, "--num-speculative-tokens"): "a whole number between 1 and 16, or auto"
                 for step in ("23-adaptive-drafts", "25-draft-heads", "123-draft-models")}}
UNLIMITED = ("--max-new-tokens", "--num-return-sequences", "--seed", "--show-candidates", "--temperature", "--top-k", "--top-p")


def sampled_steps():
    """One step in four, others for each commit; and those that it changes."""
    return [step for step in STEPS if chosen(f"families {step.name}", 4) or touched(f"steps/{step.name}")]


@functools.lru_cache(maxsize=None)
def sampled(*options):
    """Of the sampled steps, those that continue a text and whose program has these options."""
    return [step for step in sampled_steps() if step.name not in OTHERS
            and all(re.search(rf"[ ,]{option}\b", options_of(step.name)) for option in options)]


@functools.lru_cache(maxsize=None)
def options_of(step):
    return call(BUILD / "steps" / step, "--help").stdout


@functools.lru_cache(maxsize=None)
def cases(family):
    """[(text, its ids, the tokens that follow)], these up to the first that is a near tie."""
    found = []
    for case in json.loads((FAMILIES / family / "reference.json").read_text())["cases"]:
        sure = next((i for i, gap in enumerate(case["gaps"]) if gap < NEAR), len(case["gaps"]))
        if case.get("text") and sure:
            found.append((case["text"], case["ids"], case["greedy"][:sure]))
    return found


class Families(unittest.TestCase):
    def program(self, step, model, text, *options, status=0):
        done = call(BUILD / "steps" / step, "--model", model, "--device", "cpu", "--json", "--prompt", text, *options)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def sequence(self, *arguments):
        return json.loads(self.program(*arguments).stdout)["sequences"][0]

    def check(self, step, model, text, ids, greedy, *options):
        done = self.program(step, model, text, "--max-new-tokens", len(greedy),
                            *(["--ignore-eos"] if int(step.partition("-")[0]) > 1 else []), *options)
        sequence = json.loads(done.stdout)["sequences"][0]
        self.assertEqual((sequence["prompt_token_ids"], sequence["token_ids"]), (ids, greedy))
        return done

    def test_each_step_runs_a_llama_with_shared_key_heads(self):
        config = json.loads((FAMILIES / "llama-3/config.json").read_text())
        one_text = 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
        one_text *= config["max_position_embeddings"]
        for step in STEPS:
            if step.name in OTHERS:
                continue
            for case in cases("llama-3")[:2]:
                with self.subTest(step.name, text=case[0]):
                    done = self.check(step.name, FAMILIES / "llama-3", *case)
                    self.assertNotIn(" does nothing", done.stderr)
                    if "add_dtype_option" in (step.folder / "main.cpp").read_text():
                        self.assertIn("by formula: weights ", done.stderr)
                    if int(step.number) != 13:  # whose cache grows
                        cache = json.loads(done.stdout)["stats"]["cache_allocated_bytes"]
                        self.assertEqual(cache, one_text if int(step.number) > 13 else 0, "the cache has one text")

    def test_a_cache_of_blocks_holds_as_many_whole_texts_as_there_are_at_a_time(self):
        """Unless an option says otherwise. Texts of 4, 12 and 8 tokens take 12 passes, with two slots or three."""
        file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "requests.jsonl"
        file.write_text("".join(json.dumps({"prompt": prompt, "max_new_tokens": length}) + "\n"
                                for prompt, length in (("The wolf", 4), ("A fox", 12), ("The king", 8))))
        for step in STEPS:
            if step.number not in ("54", "60", "61", "62", "63", "64", "65"):
                continue
            for most, slots in ((2, 2), (8, 3)):
                with self.subTest(step.name, most=most):
                    done = call(BUILD / "steps" / step.name, "--model", ROOT / "models/tales-1m", "--device", "cpu",
                                "--ignore-eos", "--max-batch-size", most, "--requests", file)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertIn(" tokens/s, 2.0 rows a pass;", done.stderr)
                    if step.number > "60":
                        self.assertIn(f"at most {slots} of {32 * slots} blocks taken", done.stderr)

    def test_each_text_of_a_prompt_has_a_seed_of_its_own(self):
        """One more than that of the text before, in every step: it is the text that this seed gives alone."""
        def texts(step, seed, count):
            done = self.program(step, "tales-1m", "A fox", "--do-sample", "--max-new-tokens", 5, "--seed", seed,
                                "--num-return-sequences", count)
            return [(sequence["prompt_token_ids"], sequence["token_ids"]) for sequence in json.loads(done.stdout)["sequences"]]

        wanted = [text for seed in (7, 8) for text in texts("05-multinomial", seed, 1)]
        self.assertNotEqual(*wanted)
        for step in STEPS:
            if step.name not in OTHERS and int(step.number) >= 5:
                with self.subTest(step.name):
                    self.assertEqual(texts(step.name, 7, 2), wanted)

    def test_several_greedy_texts_of_a_prompt_are_refused_as_equal(self):
        """From step 08 on. A search is the other way to more than one text."""
        for step in sampled():
            if int(step.number) < 8:
                continue
            with self.subTest(step.name):
                done = self.program(step.name, "tales-1m", "A fox", "--max-new-tokens", 1, "--num-return-sequences", 2, status=2)
                self.assertRegex(done.stderr, "^error: --num-return-sequences 2 needs --do-sample(:| or --num-beams:) ")
                self.assertEqual(done.stdout, "")

    def test_a_step_has_the_options_of_the_step_before(self):
        for before, step in PAIRS:
            if step.name not in OTHER_PROGRAMS:
                kept, own = (set(re.findall(r"(?m)^ +(--[\w-]+)", options_of(one.name))) for one in (before, step))
                with self.subTest(step.name):
                    self.assertEqual(kept - own, REPLACED_OPTIONS.get(step.name, set()))

    def test_an_option_has_the_same_range_in_every_step(self):
        """The program states it when it refuses a value."""
        ranges = {option: words for words, options in RANGES.items() for option in options.split()}
        for step in sampled_steps():
            for option in re.findall(r"(?m)^ +(--[\w-]+) \S", options_of(step.name)):
                done = call(BUILD / "steps" / step.name, f"{option}=x", *(() if option == "--model" else ("--model", "no-such-model")))
                refused = re.search(rf"error: {option} is x, but it must be (.*) \(--help", done.stderr)
                expected = OWN_RANGES.get((step.name, option), ranges.get(option))
                if int(step.number) < 8 and option in UNLIMITED:  # 08 adds the limits
                    expected = re.match("a (whole )?number", expected)[0]
                with self.subTest(step.name, option=option):
                    self.assertEqual(refused[1] if refused else None, expected, done.stderr)

    def test_the_options_of_sampling_have_the_same_limits_in_every_step(self):
        """Those of the lesson, where a step has taken its code from an earlier one."""
        limits = {"--temperature": (("-0.1",), ("0", "0.000001")), "--top-k": (("0", "-1"), ("1",)),
                  "--top-p": (("0", "1.1", "-0.5"), ("0.000001", "1"))}
        for step in sampled("--temperature"):
            if int(step.number) < 8:  # which adds the limits
                continue
            for option, (refused, taken) in limits.items():
                for value in refused + taken if f"  {option} " in options_of(step.name) else ():
                    with self.subTest(step.name, option=option, value=value):
                        done = self.program(step.name, "tales-1m", "A fox", "--do-sample", "--max-new-tokens", 1, option, value,
                                            status=2 if value in refused else 0)
                        if value in refused:
                            self.assertRegex(done.stderr, f"^error: {option} .*{value}")

    def test_a_temperature_near_zero_is_greedy_in_every_step(self):
        for step in sampled("--temperature", "--do-sample"):
            texts = [self.sequence(step.name, "tales-1m", "A fox", "--max-new-tokens", 5, *options)["token_ids"]
                     for options in ((), *(("--do-sample", "--temperature", value) for value in ("0.000001", "1e-38", "0")))]
            with self.subTest(step.name):
                self.assertEqual(texts[1:], texts[:1] * 3)

    def test_a_prompt_beyond_the_context_is_refused_or_cropped_with_a_warning(self):
        def messages(step, status):
            return self.program(step.name, "tales-1m", " and so" * 300, "--max-new-tokens", 1, status=status).stderr

        for step in sampled():
            with self.subTest(step.name):
                if "--on-overflow" in options_of(step.name):
                    self.assertIn("warning: the prompt has 600 tokens, and the model sees only the last 512 of them\n", messages(step, 0))
                elif int(step.number) < 3:
                    self.assertIn("have 601 tokens together, but the model's context has 512", messages(step, 2))
                elif int(step.number) < 13:  # before there is a cache
                    self.assertNotIn("warning", messages(step, 0))
                else:
                    self.assertIn("error: the cache is full: the model has 512 positions", messages(step, 1))

    def test_the_times_of_a_text_are_measured(self):
        for step in sampled():
            times = json.loads(self.program(step.name, "tales-1m", "A fox", "--max-new-tokens", 5).stdout)["stats"]
            with self.subTest(step.name):
                self.assertGreater(times["prefill_ms"], 0)
                self.assertGreater(times["ms_per_token"], 0)
                self.assertAlmostEqual(times["tokens_per_second"] * times["ms_per_token"] / 1000, 1, 5)

    def test_several_texts_have_numbers(self):
        for step in sampled("--num-return-sequences", "--do-sample"):
            for count in (1, 3):
                with self.subTest(step.name, count=count):
                    done = call(BUILD / "steps" / step.name, "--model", "tales-1m", "--device", "cpu", "--prompt", "A fox", "--do-sample",
                                "--max-new-tokens", 3, "--num-return-sequences", count)
                    self.assertEqual(re.findall(r"(?m)^\[(\d)\]$", done.stdout), ["1", "2", "3"] if count == 3 else [], done.stderr)

    def test_only_a_temperature_near_zero_causes_a_warning(self):
        for step in sampled("--temperature"):
            draws = ("--do-sample",) if "--do-sample" in options_of(step.name) else ()
            for value in ("0.000001", "0.01", "1"):
                with self.subTest(step.name, value=value):
                    done = self.program(step.name, "tales-1m", "A fox", *draws, "--max-new-tokens", 1, "--temperature", value)
                    self.assertEqual("warning: a temperature near 0 is greedy decoding\n" in done.stderr, value == "0.000001", done.stderr)

    def test_the_likeliest_tokens_are_shown_only_if_an_option_says_so(self):
        for step in sampled("--show-candidates"):
            for count in (None, 2):
                with self.subTest(step.name, count=count):
                    done = call(BUILD / "steps" / step.name, "--model", "tales-1m", "--device", "cpu", "--prompt", "A fox",
                                "--max-new-tokens", 3, *(() if count is None else ("--show-candidates", count)))
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertEqual(len(re.findall(r"(?m)^.* \d+\.\d % ", done.stderr)), 0 if count is None else 3 * count, done.stderr)

    def test_the_perplexity_of_each_prompt_has_its_number(self):
        for step in sampled("--echo"):
            with self.subTest(step.name):
                done = self.program(step.name, "tales-1m", "A fox", "--prompt", "The king", "--echo", "--max-new-tokens", 1)
                numbers = re.findall(r"perplexity of prompt (\d+): ", done.stderr)
                self.assertEqual(numbers, [] if int(step.number) == 37 else ["1", "2"])  # 38 adds the perplexity
                self.assertNotIn("perplexity", self.program(step.name, "tales-1m", "A fox", "--max-new-tokens", 1).stderr)

    def test_the_cache_has_no_more_rows_than_texts_grow_at_a_time(self):
        def allocated(step, *options):
            done = self.program(step, "tales-1m", "A fox", "--max-new-tokens", 2, *options)
            return json.loads(done.stdout)["stats"]["cache_allocated_bytes"]

        for step in sampled("--max-batch-size"):
            one = allocated(step.name)
            for most in (1, 2):
                with self.subTest(step.name, most=most):
                    self.assertEqual(allocated(step.name, "--prompt", "The king", "--prompt", "A wolf", "--max-batch-size", most),
                                     most * one)

    def test_a_report_has_the_figures_of_the_statistics(self):
        file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "requests.jsonl"
        file.write_text("".join(json.dumps({"prompt": prompt, "max_new_tokens": length}) + "\n"
                                for prompt, length in (("The wolf", 4), ("A fox", 12), ("The king", 8))))
        for step in sampled("--requests"):
            if int(step.number) < 54:
                continue
            with self.subTest(step.name):
                done = call(BUILD / "steps" / step.name, "--model", ROOT / "models/tales-1m", "--device", "cpu", "--json",
                            "--ignore-eos", "--requests", file)
                self.assertEqual(done.returncode, 0, done.stderr)
                stats = json.loads(done.stdout)["stats"]
                report = next(line for line in done.stderr.splitlines() if line.startswith("3 requests in "))
                self.assertIn(f" s, {stats['tokens_per_second']:.1f} tokens/s, ", report)
                for name in ("TTFT", "TPOT", "ITL"):
                    three = [stats[f"{name.lower()}_ms_p{percent}"] for percent in (50, 95, 99)]
                    self.assertEqual(three, sorted(three))
                    self.assertIn(f"; {name} in ms: {three[0]:.1f} (p50), {three[1]:.1f} (p95), {three[2]:.1f} (p99)", report)

    def test_the_memory_of_the_cache_is_that_of_the_run(self):
        """Twelve tokens have keys and values in every layer; without a cache there are none."""
        config = json.loads((FAMILIES / "llama-3/config.json").read_text())
        position = 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
        for step in sampled("--no-use-cache"):
            with self.subTest(step.name):
                def stats(*options):
                    done = self.program(step.name, FAMILIES / "llama-3", "A fox", "--max-new-tokens", 12, "--ignore-eos", *options)
                    return json.loads(done.stdout)["stats"]

                cached = stats()
                self.assertGreaterEqual(cached["cache_bytes"], 12 * position)
                self.assertGreaterEqual(cached["cache_allocated_bytes"], cached["cache_bytes"])
                without = stats("--no-use-cache")
                self.assertEqual([without[f"cache_{name}bytes"] for name in ("", "allocated_", "copied_")], [0, 0, 0])

    def test_a_trace_has_the_origin_of_each_token(self):
        """A model that drafts for itself is right each time, and the pass that verifies adds a bonus. Another model is
        wrong at times."""
        file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "run.trace"

        def origins(step, draft):
            self.program(step, "tales-6m", "A fox", "--draft-model", draft, "--trace", file, "--max-new-tokens", 20, "--ignore-eos")
            events = map(json.loads, file.read_text().splitlines())
            return [event["origin"] for event in events if event["event"] == "token"]

        for step in sampled("--draft-model", "--trace", "--ignore-eos"):
            with self.subTest(step.name):
                own, other = origins(step.name, "tales-6m"), origins(step.name, "tales-1m")
                self.assertEqual(set(own[1:]), {"accepted", "bonus"})
                self.assertEqual({*other} - {"model"}, {"accepted", "bonus", "corrected"})  # a pass may have no draft

    def test_the_memory_of_the_cache_is_that_of_both_models_with_a_draft_model(self):
        def use(step, model, *options):
            stats = json.loads(self.program(step, model, "A fox", "--max-new-tokens", 3, *options).stdout)["stats"]
            return [stats["cache_bytes"], stats["cache_allocated_bytes"]]

        for step in sampled("--draft-model"):
            with self.subTest(step.name):
                apart = zip(use(step.name, "tales-6m"), use(step.name, "tales-1m"))
                self.assertEqual(use(step.name, "tales-6m", "--draft-model", "tales-1m"), [sum(pair) for pair in apart])

    def test_a_line_of_requests_has_the_options_of_the_command_line_where_it_has_none_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = Path(folder) / "requests.jsonl"
            lines.write_text('{"prompt": "A fox"}\n{"prompt": "A fox", "max_new_tokens": 2}\n')
            options = ["--requests", lines], ["--max-new-tokens", 3, "--ignore-eos"]
            for step in sampled("--requests"):
                program = BUILD / "steps" / step.name
                for first, second in (options, options[::-1]):
                    with self.subTest(step.name, first=first):
                        done = call(program, "--model", "tales-1m", "--device", "cpu", "--json", *first, *second)
                        self.assertEqual(done.returncode, 0, done.stderr)
                        self.assertEqual([len(sequence["token_ids"]) for sequence in json.loads(done.stdout)["sequences"]], [3, 2])

    def test_any_of_several_tokens_ends_a_text(self):
        """Here the fourth of the greedy text; where the shortest length is above, neither comes."""
        text, ids, greedy = cases("llama-3")[0]
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            shutil.copytree(FAMILIES / "llama-3", model)
            config = json.loads((model / "generation_config.json").read_text())
            (model / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [4095, greedy[3]]}))
            for step in STEPS[1:]:
                if step.name in OTHERS:
                    continue
                with self.subTest(step.name):
                    sequence = self.sequence(step.name, model, text, "--max-new-tokens", "9")
                    self.assertEqual((sequence["token_ids"], sequence["finish_reason"]), (greedy[:4], "eos"))
                    if step.number in ("35", "46", "64"):
                        sequence = self.sequence(step.name, model, text, "--max-new-tokens", "9", "--min-new-tokens", "9")
                        self.assertEqual((len(sequence["token_ids"]), sequence["finish_reason"]), (9, "length"))
                        self.assertNotIn(greedy[3], sequence["token_ids"][:8])

    def test_a_long_context_is_cut_to_what_is_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            shutil.copytree(FAMILIES / "llama-3", model)
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 131072}))
            position = 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
            for options, positions in (((), 4096), (("--context", 64), 64), (("--context", 5000), 5000)):
                done = self.program("14-kv-cache-static", model, "A fox", "--max-new-tokens", 3, *options)
                self.assertEqual(json.loads(done.stdout)["stats"]["cache_allocated_bytes"], positions * position)
                self.assertEqual("texts are limited to 4096 tokens; --context allows up to 131072" in done.stderr, not options)
            done = self.program("14-kv-cache-static", model, "A fox", "--context", 131073, status=2)
            self.assertRegex(done.stderr, "error: --context is 131073, but .* supports at most 131072 positions")
            beyond = self.sequence("03-context-window", model, "A fox and a crow", "--context", 3, "--max-new-tokens", 9)
            self.assertEqual(len(beyond["token_ids"]), 9)

    def test_each_family_gives_the_texts_of_transformers(self):
        families = sorted(path.name for path in FAMILIES.iterdir())
        self.assertEqual(len(families), 15)
        for family in families:
            self.assertGreater(sum(len(greedy) for _, _, greedy in cases(family)), 30, family)
            for case in cases(family):
                with self.subTest(family, text=case[0]):
                    self.check("14-kv-cache-static", FAMILIES / family, *case)

    def test_windows_and_experts_with_every_kind_of_cache(self):
        """None, growing, whole, for several texts, with drafts, of blocks. Each text grows beyond the windows."""
        for step in ("03-context-window", "13-kv-cache-dynamic", "16-variable-batching", "17-speculative-decoding", "30-leaving-rows",
                     "60-paged-kv-cache", "64-prefix-caching", "110-window-layers"):
            for family in ("mistral-window", "qwen2-window", "gemma3", "qwen3-moe"):
                case = max(cases(family), key=lambda case: len(case[1]) + len(case[2]))
                self.assertGreater(len(case[1]) + len(case[2]), 40)
                with self.subTest(step, family=family):
                    draft = ["--draft-model", FAMILIES / "qwen2-window"] if step.startswith("17") else []
                    self.check(step, FAMILIES / family, *case, *draft)

    def test_files_of_llama_cpp_give_the_texts_of_transformers(self):
        """Of a llama the converter reorders queries and keys, of a qwen3 it does not."""
        for family in ("llama-3", "qwen3"):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "model.gguf"
                file.write_bytes(gzip.decompress((FILES / f"{family}-f32.gguf.gz").read_bytes()))
                for case in cases(family):
                    with self.subTest(family, text=case[0]):
                        self.check("14-kv-cache-static", file, *case)


if __name__ == "__main__":
    unittest.main()
