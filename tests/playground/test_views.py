"""What a page shows of the inside of a run.

  tests/playground/test_views.py      with the steps that tools/wasm has built"""

import json
import math
import time
import unittest

from served_site import PROGRAMS, ROOT, STEPS, Browser, By, Keys, setUpModule  # noqa: F401


class Views(Browser):
    """Events of runs that a person has worked out, and what the views make of them."""
    START = {"event": "start", "options": {"--temperature": "1"}, "n_positions": 8, "eos_token_id": 3, "prompts": [[0, 1]],
             "vocabulary": [" a", " b", " c", " d", " e"]}
    SHOWN = ".inside:not([hidden])"
    TEXT = {"event": "text", "text": 1, "prompt": 0}

    def show(self, *events, width=1200):
        self.open(width=width)
        self.browser.execute_script("""
            const run = makeElement("section", { className: "run" });
            document.querySelector(".runs").append(run);
            const views = stepViews(run);
            for (const event of arguments[0]) views(event);""", events)
        if any(event["event"] == "pass" for event in events):
            self.wait(lambda: len(self.find(".inside .shown > *")) == len(self.find(self.SHOWN)))

    def table(self, title):
        """The cells of a view, line by line."""
        rows = self.browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map((row) => [...row.children].map((cell) => cell.textContent))",
            f'.inside[aria-label="{title}"] tr')
        return [[cell.removeprefix("▸ ") for cell in row] for row in rows]

    def caption(self, title):
        return self.browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''",
                                           f'.inside[aria-label="{title}"] caption')

    @staticmethod
    def shares(logits):
        weights = [math.exp(logit) for logit in logits]
        return [f"{100 * weight / sum(weights):.1f} %" if weight else "–" for weight in weights]

    CHOICE, DRAFT, PASS = ("What each token was chosen from", "What became of each draft",
                           "What each pass computed, and what the cache kept")
    LOOK, MATRIX = "What each token looked at", "The attention of one head as a matrix"
    SHAPE = [json.loads((ROOT / "models/tales-gqa-1m/config.json").read_text())[name] for name in ("num_hidden_layers", "num_attention_heads")]

    def looked(self):
        """That view's text, and each of its positions with the height of its bar."""
        return self.browser.execute_script("""
            const view = document.querySelector(arguments[0]);
            return [view.querySelector("p").textContent,
                    [...view.querySelectorAll("[role=list] > li")].map((item) => [item.textContent, item.style.getPropertyValue("--share")])];""",
                                           f'.inside[aria-label="{self.LOOK}"]')

    def test_each_stage_shows_what_it_makes_of_the_candidates(self):
        options = {"--presence-penalty": "0.5", "--frequency-penalty": "0", "--repetition-penalty": "2", "--temperature": "0.5",
                   "--top-k": "3", "--top-p": "0.8", "--do-sample": "true"}
        self.show({**self.START, "options": options}, self.TEXT,
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}]},
                  {"event": "logits", "row": 0, "position": 1, "logits": [2, 1, 0.5, -1, 1.5]},
                  {"event": "token", "text": 1, "token": 4, "origin": "model"})
        out = -math.inf
        columns = [self.shares(logits) for logits in ([2, 1, .5, -1, 1.5], [1.5, .5, .5, -1, 1.5], [.75, .25, .5, -1, 1.5],
                                                      [1.5, .5, 1, -2, 3], [1.5, out, 1, out, 3], [1.5, out, out, out, 3])]
        self.assertEqual(self.table(self.CHOICE), [
            ["token", "model", "presence-penalty", "repetition-penalty", "temperature", "top-k", "top-p"],
            *([name, *(column[token] for column in columns)]
              for name, token in (('" a"', 0), ('" e"', 4), ('" b"', 1), ('" c"', 2), ('" d"', 3)))])
        self.assertIn('Token 1 of 1: " e", of text 1.', self.caption(self.CHOICE))

    def test_a_mask_comes_first_and_names_its_state(self):
        logits = [2, 1, 0.5, -1, 1.5]
        self.show({**self.START, "options": {"--temperature": "0.5"}}, self.TEXT,
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}]},
                  {"event": "logits", "row": 0, "position": 1, "logits": logits},
                  {"event": "mask", "text": 1, "state": 7, "allowed": [1, 3]},
                  {"event": "token", "text": 1, "token": 1, "origin": "model"},
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 2, "tokens": [1]}]},
                  {"event": "logits", "row": 0, "position": 2, "logits": logits},
                  {"event": "token", "text": 1, "token": 0, "origin": "model"})
        out = -math.inf
        self.assertEqual(self.table(self.CHOICE)[0], ["token", "model", "temperature"])  # the mask was the other token's
        self.find(f'.inside[aria-label="{self.CHOICE}"] input')[0].send_keys(Keys.ARROW_LEFT)
        columns = [self.shares(logits) for logits in (logits, [out, 1, out, -1, out], [out, 2, out, -2, out])]
        self.assertEqual(self.table(self.CHOICE), [
            ["token", "model", "allowed", "temperature"],
            *([name, *(column[token] for column in columns)]
              for name, token in (('" a"', 0), ('" e"', 4), ('" b"', 1), ('" c"', 2), ('" d"', 3)))])
        self.assertIn("In state 7, 2 of 5 tokens are allowed.", self.caption(self.CHOICE))

    def show_drafts(self, **options):
        def said(position, *shares):
            return {"event": "logits", "row": 0, "position": position, "logits": [math.log(share) for share in shares]}

        def passed(model, start, *tokens):
            return {"event": "pass", "model": model, "rows": [{"row": 0, "start": start, "tokens": tokens}]}

        self.show({**self.START, "options": options}, self.TEXT,
                  passed("draft", 0, 0, 1), said(1, .1, .1, .5, .2, .1), passed("draft", 2, 2), said(2, .1, .1, .1, .1, .6),
                  passed("target", 0, 0, 1, 2, 4),
                  said(1, .1, .1, .6, .1, .1), said(2, .1, .2, .2, .35, .15), said(3, .2, .2, .2, .2, .2),
                  {"event": "token", "text": 1, "token": 2, "origin": "accepted"},
                  {"event": "token", "text": 1, "token": 3, "origin": "corrected"},
                  passed("target", 3, 3, 1), said(3, .1, .7, .1, .05, .05), said(4, .5, .2, .1, .1, .1),  # a look-up
                  {"event": "token", "text": 1, "token": 1, "origin": "accepted"},
                  {"event": "token", "text": 1, "token": 0, "origin": "bonus"})

    def test_without_sampling_the_likeliest_draft_has_all_probability(self):
        self.show_drafts()
        self.find(f'.inside[aria-label="{self.DRAFT}"] input')[0].send_keys(Keys.ARROW_LEFT)
        self.assertEqual(self.table(self.DRAFT)[1:], [['" c"', "100.0 %", "100.0 %", "1.00", "accepted"],
                                                      ['" e"', "100.0 %", "–", "0.00", 'rejected: " d" instead']])

    def test_each_draft_has_its_p_q_and_verdict(self):
        self.show_drafts(**{"--do-sample": "true"})
        self.assertEqual(self.table(self.DRAFT), [["drafted", "q", "p", "min(1, p/q)", "verdict"],
                                                  ['" b"', "100.0 %", "70.0 %", "0.70", "accepted"]])
        self.assertIn('Round 2 of 2: 1 of 1 accepted, and " a" as a bonus.', self.caption(self.DRAFT))
        self.assertIn('Token 4 of 4: " a"', self.caption(self.CHOICE))
        slider = self.find(f'.inside[aria-label="{self.DRAFT}"] input')[0]
        slider.send_keys(Keys.ARROW_LEFT)
        self.assertEqual(self.table(self.DRAFT)[1:], [['" c"', "50.0 %", "60.0 %", "1.00", "accepted"],
                                                      ['" e"', "60.0 %", "15.0 %", "0.25", 'rejected: " d" instead']])
        self.assertEqual(slider.get_attribute("aria-valuetext"), "1 of 2")
        self.assertEqual(self.table(self.PASS)[1], ["0", "4", "3", "2", "62.5 %", " d b"])  # one draft was dropped

    def test_rows_of_a_batch_find_their_texts(self):
        start = {**self.START, "prompts": [[0, 1], [2]]}
        self.show(start, self.TEXT, {"event": "text", "text": 2, "prompt": 1},
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [2]}, {"row": 3, "start": 0, "tokens": [0, 1]}]},
                  {"event": "logits", "row": 0, "position": 0, "logits": [0, 0, 0, 9, 0]},
                  {"event": "logits", "row": 3, "position": 1, "logits": [0, 0, 0, 0, 9]},
                  {"event": "token", "text": 1, "token": 4, "origin": "model"})
        self.assertEqual(self.table(self.CHOICE)[1], ['" e"', "100.0 %"])
        self.assertEqual([row[0] for row in self.table(self.PASS)[1:]], ["0", "3"])

    def test_a_text_has_options_of_its_own_and_does_not_end_too_early(self):
        start = {**self.START, "options": {"--temperature": "2", "--min-new-tokens": "1"}, "prompts": [[0, 1], [2]]}
        self.show(start, self.TEXT, {**self.TEXT, "text": 2, "prompt": 1, "options": {"--temperature": "0.5", "--min-new-tokens": "2"}},
                  *(event for text, token in ((1, 3), (1, 3), (2, 0), (2, 0))
                    for event in ({"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0]}]},
                                  {"event": "logits", "row": 0, "position": 0, "logits": [1, 0, 1, 2, 0]},
                                  {"event": "token", "text": text, "token": token, "origin": "model"})))
        slider = self.find(f'.inside[aria-label="{self.CHOICE}"] input')[0]
        for temperature, barred in ((0.5, True), (0.5, True), (2, False), (2, True)):  # the newest comes first
            logits = [1, 0, 1, -math.inf if barred else 2, 0]
            table = self.table(self.CHOICE)
            self.assertEqual(table[0], ["token", "model", "min-new-tokens", "temperature"])
            self.assertEqual([row[0] for row in table[1:4]], ['" d"', '" a"', '" c"'])
            for column, of in enumerate(([1, 0, 1, 2, 0], logits, [logit / temperature for logit in logits]), 1):
                self.assertEqual([row[column] for row in table[1:]], [self.shares(of)[i] for i in (3, 0, 2, 1, 4)])
            slider.send_keys(Keys.ARROW_LEFT)

    def test_each_token_has_what_it_looked_at(self):
        start = {**self.START, "options": {"--trace-attention": "5,2"}}
        self.show(start, self.TEXT,
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}, {"row": 2, "start": 1, "tokens": [3]}]},
                  {"event": "attention", "row": 0, "tokens": [0, 1], "weights": [[1], [0.25, 0.75]]},
                  {"event": "attention", "row": 2, "tokens": [-1, 3], "weights": [[0, 1]]})
        slider = self.find(f'.inside[aria-label="{self.LOOK}"] input')[0]
        says = "Its share of attention to each position, by head 2 of layer 5:"
        for number, place, items in ((3, '" d", at position 1 of row 2', [['"�" –', "0%"], ['" d" 100.0 %', "100%"]]),
                                     (2, '" b", at position 1 of row 0', [['" a" 25.0 %', "25%"], ['" b" 75.0 %', "75%"]]),
                                     (1, '" a", at position 0 of row 0', [['" a" 100.0 %', "100%"]])):
            self.assertEqual(self.looked(), [f"Token {number} of 3: {place}. {says}", items])
            self.assertEqual(slider.get_attribute("aria-valuetext"), f"{number} of 3")
            slider.send_keys(Keys.ARROW_LEFT)
        for scheme in ("light", "dark"):  # the bar differs from its background, and both from the words
            self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            bar = self.browser.execute_script("return getComputedStyle(document.querySelector('.looked li')).backgroundImage")
            self.assertRegex(bar, r"linear-gradient\(to top, rgba?\(\d+, \d+, \d+.* 100%, rgba\(0, 0, 0, 0\) 0")

    def test_the_attention_of_a_head_is_a_matrix_whose_cells_the_keys_select(self):
        start = {**self.START, "options": {"--trace-attention": "5,2"}}
        self.show(start, self.TEXT,
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1, 2]}]},
                  {"event": "attention", "row": 0, "tokens": [0, 1, 2], "weights": [[1], [0.25, 0.75], [0.5, 0.4, 0.1]]},
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 3, "tokens": [4]}]},
                  {"event": "attention", "row": 0, "tokens": [0, 1, 2, 4], "weights": [[0.1, 0.2, 0.3, 0.4]]}, width=360)
        says = self.words(self.MATRIX)
        self.assertIn("Pass 2 of 2: 4 tokens of row 0, by head 2 of layer 5.", says)
        self.assertIn("On average 30.0 % goes to the first position, 35.0 % to the token before, and 25.0 % to the token itself.", says)
        self.assertIn('" e" at position 3 looks at " a" at position 0 with a share of 10.0 %.', says)
        canvas = self.find("canvas.matrix")[0]
        for keys, cell in ((Keys.ARROW_RIGHT * 2, '" e" at position 3 looks at " c" at position 2 with a share of 30.0 %.'),
                           (Keys.ARROW_UP * 2, '" b" at position 1 looks at " b" at position 1 with a share of 75.0 %.'),
                           (Keys.ARROW_UP * 9, '" a" at position 0 looks at " a" at position 0 with a share of 100.0 %.')):
            canvas.send_keys(keys)
            self.assertIn(cell, self.words(self.MATRIX))
        self.assertIn("4 tokens", canvas.accessible_name)
        alphas = self.browser.execute_script("""
            const [canvas] = arguments, margin = 84, cell = 16, pen = canvas.getContext("2d");
            return [0, 1, 2, 3].map((i) => [0, 1, 2, 3].map((j) => pen.getImageData(margin + j * cell + 8, margin + i * cell + 8, 1, 1).data[3] / 255));""", canvas)
        shares = [[1, 0, 0, 0], [.25, .75, 0, 0], [.5, .4, .1, 0], [.1, .2, .3, .4]]
        for line, wanted in zip(alphas, shares, strict=True):
            for alpha, share in zip(line, wanted, strict=True):
                self.assertAlmostEqual(alpha, math.sqrt(share), delta=0.01)
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)

    def test_lines_of_tokens_that_moved_are_not_known(self):
        start = {**self.START, "options": {"--trace-attention": "0,0"}}
        self.show(start, self.TEXT, {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}]},
                  {"event": "attention", "row": 0, "tokens": [0, 1], "weights": [[1], [0.5, 0.5]]},
                  {"event": "attention", "row": 0, "tokens": [1, 2], "weights": [[0.5, 0.5]]})  # a window slid
        self.assertIn("One line is grey, because no pass of this run has shown its token.", self.words(self.MATRIX))
        self.find("canvas.matrix")[0].send_keys(Keys.ARROW_UP)
        self.assertIn('No pass of this run has shown what " b" at position 0 looks at.', self.words(self.MATRIX))

    def test_a_head_of_a_group_has_the_keys_of_its_group(self):
        for heads, shared, head, says in ((4, 2, 1, ", with the keys of head 0"), (4, 2, 2, ", with the keys of head 1"),
                                          (9, 3, 8, ", with the keys of head 2"), (4, 4, 2, "")):
            with self.subTest(f"head {head} of {heads} over {shared}"):
                self.show({**self.START, "n_head": heads, "n_kv_head": shared, "options": {"--trace-attention": f"5,{head}"}}, self.TEXT,
                          {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0]}]},
                          {"event": "attention", "row": 0, "tokens": [0], "weights": [[1]]})
                self.assertIn(f"by head {head} of layer 5{says}:", self.looked()[0])

    def test_what_has_no_events_is_not_shown(self):
        self.show(self.START, {**self.START, "event": "unheard of"})
        self.assertEqual(self.find(self.SHOWN), [])
        self.show(self.START, self.TEXT, {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}]})
        self.assertEqual([view.get_attribute("aria-label") for view in self.find(self.SHOWN)], [self.PASS])

    def test_they_fit_a_narrow_screen_and_have_names(self):
        self.show(self.START, self.TEXT,
                  {"event": "pass", "model": "m", "rows": [{"row": 0, "start": 0, "tokens": [0, 1]}]},
                  {"event": "logits", "row": 0, "position": 1, "logits": [2, 1, 0.5, -1, 1.5]},
                  {"event": "attention", "row": 0, "tokens": [0, 1] * 40, "weights": [[0.0125] * 80]},
                  {"event": "token", "text": 1, "token": 4, "origin": "model"}, width=360)
        self.assertEqual(len(self.find(self.SHOWN)), 4)
        self.assertTrue(self.browser.execute_script("const all = document.querySelector('.looked'); return all.scrollWidth <= all.clientWidth"))
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
        self.assertEqual([box for box in self.find(f"{self.SHOWN} input, {self.SHOWN} [role=region]") if not box.accessible_name], [])
        self.assertEqual({cell.get_attribute("scope") for cell in self.find(".inside th")}, {"row", "col"})

    BEAMS, ROWS = "How the beams of a search grew", "Which text is in which row of the batch"

    @staticmethod
    def passed(rows, shares=(), **more):
        """A pass that was fed {row: (start, tokens)}, and after it {row: shares of the vocabulary}."""
        return [{"event": "pass", "model": "m", "rows": [{"row": row, "start": start, "tokens": tokens} for row, (start, *tokens) in rows.items()], **more},
                *({"event": "logits", "row": row, "position": rows[row][0] + len(rows[row]) - 2,
                   "logits": [math.log(share) for share in some]} for row, some in dict(shares).items())]

    @staticmethod
    def copied(source, target, positions):
        return {"event": "copy", "model": "m", "from": source, "first": 0, "positions": positions, "to": target}

    def search(self, copy=True):
        """Two beams, three tokens: after "c" the text may end, and the best one goes "b d a"."""
        start = {**self.START, "eos_token_id": 4, "options": {"--num-beams": "2", "--max-new-tokens": "3", "--temperature": "1"}}
        return [start, self.TEXT,
                *self.passed({0: (0, 0, 1)}, {0: (.1, .4, .3, .15, .05)}), *([self.copied(0, 1, 2)] if copy else []),
                *self.passed({0: (2, 1), 1: (2, 2)}, {0: (.11, .1, .09, .5, .2), 1: (.05, .05, .05, .05, .8)}), self.copied(0, 1, 3),
                *self.passed({0: (3, 3), 1: (3, 0)}, {0: (.6, .1, .1, .1, .1), 1: (.01, .01, .01, .96, .01)}),
                *({"event": "token", "text": 1, "token": token, "origin": "model"} for token in (1, 3, 0)),
                {"event": "end", "text": 1, "finish_reason": "length", "score": math.log(.12) / 3}]

    def words(self, title):
        return " ".join(part.text for part in self.find(f'.inside[aria-label="{title}"] p'))

    def shapes(self, kind):
        return len(self.find(f'.inside[aria-label="{self.BEAMS}"] svg g{kind}'))

    def test_the_beams_of_a_search_have_parents_sums_and_ends(self):
        self.show(*self.search())
        self.assertEqual([view.get_attribute("aria-label") for view in self.find(self.SHOWN)], [self.BEAMS, self.PASS])
        self.assertIn("Step 3 of 3", self.words(self.BEAMS))
        self.assertIn("Shown as text 1: the one with −0.707.", self.words(self.BEAMS))
        self.assertEqual(self.table(self.BEAMS)[1:], [
            ["ended 1", " b d a", f"−{-math.log(.12):.4f}", f"−{-math.log(.12) / 3:.4f}", "shown as text 1; token 3: length"],
            ["ended 2", " c e", f"−{-math.log(.24):.4f}", f"−{-math.log(.24) / 2:.4f}", "one of the best so far; token 2: eos"],
            ["ended 3", " b a d", f"−{-math.log(.044 * .96):.4f}", f"−{-math.log(.044 * .96) / 3:.4f}", "others are better; token 3: length"]])
        self.assertEqual([self.shapes(kind) for kind in ("", ".told", ".ended", ".out")], [8, 4, 3, 0])
        slider = self.find(f'.inside[aria-label="{self.BEAMS}"] input')[0]
        slider.send_keys(Keys.ARROW_LEFT)
        self.assertEqual(self.table(self.BEAMS)[1:], [
            ["beam 1", " b d", f"−{-math.log(.2):.4f}", "", "continues beam 1 of the step before"],
            ["beam 2", " b a", f"−{-math.log(.044):.4f}", "", "continues beam 1 of the step before"],
            ["ended 1", " c e", f"−{-math.log(.24):.4f}", f"−{-math.log(.24) / 2:.4f}", "one of the best so far; token 2: eos"]])
        slider.send_keys(Keys.ARROW_LEFT)
        self.assertEqual([row[:2] for row in self.table(self.BEAMS)[1:]], [["beam 1", " b"], ["beam 2", " c"]])

    def test_a_search_that_cannot_be_followed_says_so(self):
        self.show(*self.search(copy=False))
        self.assertIn("this page cannot follow the search any further", self.words(self.BEAMS))
        events = self.search()
        self.show(*events[:-1], {**events[-1], "score": -1})
        self.assertIn("the program has other scores", self.words(self.BEAMS))
        self.show(*(event for event in events if event.get("token") != 3))
        self.assertIn("the program shows a text that is not among these", self.words(self.BEAMS))
        events[2]["rows"][0]["tokens"] = [2]
        self.show(*events)
        self.assertIn("its first pass is not that of the prompt", self.words(self.BEAMS))
        events = self.search()
        events[3]["logits"][0] = 5  # "a" should have been a beam
        self.show(*events[:8])
        self.assertIn("other texts than these sums predict", self.words(self.BEAMS))

    def test_a_long_search_stays_quick(self):
        self.open(width=360)
        seconds = self.browser.execute_script("""
            const beams = 8, size = 4096, run = makeElement("section", { className: "run" });
            document.querySelector(".runs").append(run);
            const views = stepViews(run), begun = performance.now();
            views({ event: "start", options: { "--num-beams": String(beams), "--max-new-tokens": "300" }, n_positions: 512, eos_token_id: 0,
                    prompts: [[1]], vocabulary: [...Array(size).keys()].map((i) => ` w${i}`) });
            views({ event: "text", text: 1, prompt: 0 });
            const logits = Float32Array.from({ length: size }, (_, i) => -i / 100);
            for (let step = 0; step < 300; ++step) {
              const rows = [...Array(step ? beams : 1).keys()];
              views({ event: "pass", model: "m", rows: rows.map((row) => ({ row, start: step, tokens: [step ? row + 1 : 1] })) });
              for (const row of rows) views({ event: "logits", row, position: step, logits });
              for (let row = 1; row < beams; ++row) views({ event: "copy", model: "m", from: 0, first: 0, positions: step + 1, to: row });
            }
            return (performance.now() - begun) / 1000;""")
        self.assertLess(seconds, 20)
        self.wait(lambda: "Step 299 of 299" in self.words(self.BEAMS))
        slider = self.find(f'.inside[aria-label="{self.BEAMS}"] input')[0]
        begun = time.monotonic()
        for _ in range(10):
            slider.send_keys(Keys.ARROW_LEFT)
        self.assertIn("Step 289 of 299", self.words(self.BEAMS))
        self.assertLess(time.monotonic() - begun, 10)
        self.assertLess(len(self.find(f'.inside[aria-label="{self.BEAMS}"] *')), 1500)
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)

    def batch(self):
        """Text 1 ends, text 2 moves to its row, text 3 comes in two pieces, and text 2 has to begin again."""
        def token(text, token):
            return {"event": "token", "text": text, "token": token, "origin": "model"}

        return [{**self.START, "prompts": [[0], [1, 2], [3, 3, 0]], "options": {}}, *({"event": "text", "text": i + 1, "prompt": i} for i in range(3)),
                *self.passed({0: (0, 0), 1: (0, 1, 2)}, batch=2), token(1, 1), token(2, 3), self.copied(1, 0, 2),
                *self.passed({0: (2, 3), 1: (0, 3, 3)}, batch=2), token(2, 3),
                *self.passed({1: (2, 0)}, batch=2), token(3, 0),
                *self.passed({0: (0, 1, 2, 3, 3), 1: (3, 0)}, batch=2), token(2, 1), token(3, 2),
                *({"event": "end", "text": i + 1, "finish_reason": "length"} for i in range(3))]

    def test_rows_of_a_batch_show_who_joins_moves_waits_and_leaves(self):
        self.show(*self.batch())
        self.assertEqual([view.get_attribute("aria-label") for view in self.find(self.SHOWN)], [self.ROWS, self.PASS])
        self.assertEqual(self.table(self.ROWS), [["row", "1", "2", "3", "4"],
                                                 ["0", "1 +1 ▸■", "2 +1 ⇄‖", "·", "2 +4 ↻■"],
                                                 ["1", "2 +2 ▸", "3 +2 ▸", "3 +1", "3 +1 ■"]])
        self.assertIn("Pass 4 of 4: 5 tokens in 2 of 2 rows.", self.words(self.ROWS))
        names = [sign.get_attribute("aria-label") for sign in self.find(f'.inside[aria-label="{self.ROWS}"] td [role=img]')]
        self.assertEqual(names, ["begins, ends", "comes from row 1, has to wait", "begins again, ends", "begins", "begins", "ends"])
        self.find(f'.inside[aria-label="{self.ROWS}"] input')[0].send_keys(Keys.ARROW_LEFT)
        self.assertEqual(self.table(self.ROWS)[0], ["row", "1", "2", "3"])
        self.show(*self.batch()[:-6])  # in the middle of the run, it is unknown which text will come again
        self.assertEqual(self.table(self.ROWS), [["row", "1", "2", "3"], ["0", "1 +1 ▸□", "2 +1 ⇄□", "·"], ["1", "2 +2 ▸", "3 +2 ▸", "3 +1"]])

    def test_a_row_whose_text_is_not_known_has_a_question_mark(self):
        self.show(*self.batch()[:4], *self.passed({0: (0, 0), 1: (4, 1)}, batch=3))
        self.assertEqual(self.table(self.ROWS), [["row", "1"], ["0", "? +1"], ["1", "? +1"]])
        self.assertIn("A ? marks something that is not known", self.words(self.ROWS))

    def test_one_row_is_no_batch(self):
        self.show(self.START, self.TEXT, *self.passed({0: (0, 0, 1)}), *self.passed({0: (2, 1)}))
        self.assertEqual([view.get_attribute("aria-label") for view in self.find(self.SHOWN)], [self.PASS])

    def test_pictures_fit_a_narrow_screen_and_can_be_reached_by_keys(self):
        for events in (self.search(), self.batch()):
            self.show(*events, width=360)
            self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
            boxes = self.find(f"{self.SHOWN} .wide")
            self.assertEqual([(box.get_attribute("role"), box.get_attribute("tabindex"), bool(box.accessible_name)) for box in boxes], [("region", "0", True)])
            self.assertEqual([picture for picture in self.find(f"{self.SHOWN} svg") if not picture.accessible_name], [])
        self.show(*self.search(), width=360)
        box = self.find(f"{self.SHOWN} .wide")[0]
        wide, shown, at = self.browser.execute_script("return [arguments[0].scrollWidth, arguments[0].clientWidth, arguments[0].scrollLeft]", box)
        self.assertLess(shown, wide)
        self.assertAlmostEqual(at, wide - shown, delta=2)  # the newest is seen

    def test_the_words_above_a_wide_batch_stay_in_sight(self):
        """The box shows the newest passes, at its right end."""
        self.show({**self.START, "n_positions": 99}, self.TEXT, {**self.TEXT, "text": 2},
                  *(event for i in range(20) for event in self.passed({0: (i, 0), 1: (i, 1)}, batch=2)), width=360)
        left, right, scrolled = self.browser.execute_script("""
            const box = document.querySelector(arguments[0]), [caption, frame] = [box.querySelector("caption"), box].map((one) => one.getBoundingClientRect());
            return [caption.left - frame.left, caption.right - frame.right, box.scrollLeft];""", f'.inside[aria-label="{self.ROWS}"] .wide')
        self.assertGreater(scrolled, 100)
        self.assertGreaterEqual(left, 0)
        self.assertLessEqual(right, 0)

    def test_a_search_is_seen_while_it_runs(self):
        found = [step for step in STEPS if step.endswith(("beam-rows", "beam-tree"))]
        if not found:
            self.skipTest("no search is built")
        self.open(found[-1])
        self.browser.execute_script("arguments[0].click()", self.find(".playground .watch")[0])
        self.type('--prompt "A fox" --num-beams 3 --max-new-tokens 12 --json')
        self.assertIn("done", self.ended())
        self.wait(lambda: "Shown as text 1" in self.words(self.BEAMS))
        sequence = json.loads(self.output()[self.output().index('{"sequences"'):].splitlines()[0])["sequences"][0]
        shown = next(row for row in self.table(self.BEAMS) if "shown as text 1" in row[-1])
        self.assertEqual(shown[1], sequence["text"].replace("\n", "↵"))
        self.assertAlmostEqual(float(shown[3].replace("−", "-")), sequence["score"], delta=1e-3)

    def open_traced(self, width=1200):
        traced = [step for step in STEPS if b"--trace" in (PROGRAMS / f"{step}.wasm").read_bytes()]
        if not traced:
            self.skipTest("no step knows --trace")
        self.open(traced[-1], width)

    def test_a_step_shows_what_a_head_looked_at(self):
        self.open_traced(width=360)
        self.type('--prompt "Once upon a time" --max-new-tokens 2 --trace-attention 5,3')  # that is enough
        self.assertIn("done", self.ended())
        self.wait(lambda: self.find(".looked"))
        [words, items] = self.looked()
        self.assertIn("Token 5 of 5", words)
        self.assertIn("head 3 of layer 5", words)
        self.assertEqual([item.split('"')[1] for item, _ in items[:4]], ["Once", " upon", " a", " time"])
        self.assertAlmostEqual(sum(float(share.removesuffix("%")) for _, share in items), 100, delta=0.01)

        self.assertIn("Pass 2 of 2: 5 tokens of row 0, by head 3 of layer 5.", self.words(self.MATRIX))

        box, menus = self.find(".playground .watch")[0], self.find(".playground .looks select")
        self.assertFalse(menus[0].is_displayed())
        self.browser.execute_script("arguments[0].click()", box)
        self.assertEqual([menu.accessible_name for menu in menus], ["and the attention of one head: layer", "head"])
        self.assertLessEqual(self.browser.execute_script("return document.documentElement.scrollWidth"), 360)
        self.assertEqual([[option.text for option in menu.find_elements(By.TAG_NAME, "option")] for menu in menus],
                         [["–", *"012345"], ["–", *"0123"]])
        menus[1].send_keys("1")
        self.assertEqual([menu.get_attribute("value") for menu in menus], ["0", "1"])  # a head is of a layer
        self.type('--prompt "Once upon a time" --max-new-tokens 2')
        self.assertIn("done", self.ended())
        self.wait(lambda: self.find(".looked"))
        self.assertIn("head 1 of layer 0", self.looked()[0])
        menus[0].send_keys("–")
        self.assertEqual([menu.get_attribute("value") for menu in menus], ["", ""])
        self.type('--prompt "A" --max-new-tokens 2')
        self.assertIn("done", self.ended())
        self.assertEqual(self.find(f'.run:first-child {self.SHOWN}[aria-label="{self.LOOK}"]'), [])
        self.type('--prompt "A" --max-new-tokens 2 --trace-attention ,1')
        self.assertIn("ended with status 2", self.ended())
        self.assertIn("--trace-attention ,1: tales-6m needs a layer from 0 to 5 and a head from 0 to 3", self.output())
        line = self.find("#playground-line")[0]
        line.send_keys(" --model tales-gqa-1m")  # the menus are those of its model
        self.assertEqual([len(menu.find_elements(By.TAG_NAME, "option")) for menu in menus], [1 + count for count in self.SHAPE])

    def test_a_step_shows_what_happens_inside(self):
        self.open_traced()
        self.browser.execute_script("arguments[0].click()", self.find(".playground .watch")[0])
        self.type('--prompt "Once upon a time" --max-new-tokens 5')
        self.assertIn("done", self.ended())
        self.wait(lambda: "Token 5 of 5" in self.caption(self.CHOICE))
        shown = self.table(self.CHOICE)[1:]
        likeliest = max(shown, key=lambda row: float(row[1].removesuffix(" %")))
        self.assertIn(likeliest[0], self.caption(self.CHOICE))  # greedy
        self.assertIn(likeliest[0][1:-1], self.output())


if __name__ == "__main__":
    unittest.main()
