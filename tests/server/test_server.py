"""The server as its clients see it: each endpoint, each error, streams, clients that leave, and the end."""

import concurrent.futures
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from support import ALONE, PATIENCE, PROGRAM, ROOT, Server, alone, memory, wait_until

PROMPTS = ["Once upon a time", "The fox said to the crow:", "A Lion", "In the dark forest there lived"]


def some_requests(count, seed):
    """Requests of all kinds, by chance."""
    choose = random.Random(seed)
    requests = []
    for _ in range(count):
        request = {"prompt": choose.choice(PROMPTS) * choose.randint(1, 4), "max_tokens": choose.randint(1, 40),
                   "seed": choose.randint(0, 10**6), "temperature": choose.choice([0, 0.7, 1, 1.5])}
        if choose.random() < 0.5:
            request["top_k"] = choose.randint(1, 50)
        if choose.random() < 0.5:
            request["top_p"] = choose.choice([0.3, 0.9])
        if choose.random() < 0.3:
            request.update(presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2)
        if choose.random() < 0.3:
            request["stop"] = choose.choice([[" the", "and"], "\n", ["x" * 200]])
        if choose.random() < 0.2:
            request["min_tokens"] = request["max_tokens"]
        requests.append(request)
    return requests


class Endpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server())

    def test_health_models_page_and_description(self):
        self.assertEqual(self.server.ask("GET", "/health")[::2], (200, {"status": "ok"}))
        status, _, models = self.server.ask("GET", "/v1/models")
        self.assertEqual((status, [model["id"] for model in models["data"]]), (200, ["tales-6m"]))
        status, header, page = self.server.ask("GET", "/?a=b")
        self.assertEqual((status, header["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("</html>", page)
        self.assertEqual(re.findall(r"(?:https?:)?//[\w.]+", page), [], "the page asks no other host for anything")
        self.assertIn('rel="icon"', page, "a browser requests no other icon then")
        for field in ("temperature", "top_p", "min_p"):
            self.assertRegex(page, rf'id="{field}" type="number" min="0" max="\d+" step="any"')
        status, _, description = self.server.ask("GET", "/openapi.json")
        self.assertEqual(status, 200)
        self.assertEqual(description["components"]["schemas"]["CompletionRequest"]["properties"]["max_tokens"]["maximum"], 512)
        self.assertEqual(sorted(description["paths"]),
                         ["/", "/health", "/metrics", "/openapi.json", "/v1/completions", "/v1/models", "/v1/models/{model}"])

    def test_head_is_get_without_the_body(self):
        status, header, body = self.server.ask("HEAD", "/health")
        self.assertEqual((status, header["Content-Length"], body), (200, "15", ""))

    def test_a_completion_has_openais_form(self):
        answer = self.server.complete(PROMPTS[0], max_tokens=5, temperature=0)
        self.assertEqual(list(answer), ["id", "object", "created", "model", "choices", "usage"])
        self.assertEqual((answer["object"], answer["model"]), ("text_completion", "tales-6m"))
        self.assertLess(abs(answer["created"] - time.time()), 60)
        self.assertEqual(answer["choices"], [{"index": 0, "text": alone([{"prompt": PROMPTS[0], "max_tokens": 5,
                                                                          "temperature": 0}])[0],
                                              "logprobs": None, "finish_reason": "length"}])
        self.assertEqual(answer["usage"], {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9})
        self.assertNotEqual(answer["id"], self.server.complete("A", max_tokens=1)["id"])

    def test_a_text_and_its_tokens_are_the_same_prompt(self):
        line = subprocess.run([ALONE, "--model", "tales-6m", "--device", "cpu", "--json", "--max-new-tokens", "0",
                               "--prompt", PROMPTS[1]], capture_output=True, text=True, cwd=ROOT)
        ids = json.loads(line.stdout)["sequences"][0]["prompt_token_ids"]
        self.assertEqual(self.server.texts(ids, temperature=0), self.server.texts(PROMPTS[1], temperature=0))
        self.assertEqual(self.server.texts([ids, ids], temperature=0), 2 * self.server.texts(PROMPTS[1], temperature=0))

    def test_several_prompts_and_texts_come_in_their_order(self):
        one = [self.server.texts(prompt, temperature=0)[0] for prompt in PROMPTS]
        self.assertEqual(self.server.texts(PROMPTS, temperature=0), one)
        answer = self.server.complete(PROMPTS, temperature=0, n=3)
        self.assertEqual([choice["text"] for choice in answer["choices"]], [text for text in one for _ in range(3)])
        self.assertEqual([choice["index"] for choice in answer["choices"]], list(range(12)))
        self.assertEqual(len(set(self.server.texts("A", n=5, temperature=1.5, seed=3))), 5, "each draws for itself")

    def test_the_defaults(self):
        answer = self.server.complete("The", ignore_eos=True)
        self.assertEqual(answer["usage"]["completion_tokens"], 16)
        self.assertGreater(len({self.server.texts("The")[0] for _ in range(5)}), 1, "without a seed each text is another")
        self.assertEqual(self.server.texts("The", seed=5), self.server.texts("The", seed=5))

    def test_an_end_of_text_that_ends_nothing_is_shown(self):
        prompt = json.loads((ROOT / "tests/reference/batch.json").read_text(encoding="utf-8"))["cases"][-1]["prompt"]
        ended = self.server.complete(prompt, temperature=0, max_tokens=40)
        text, count = ended["choices"][0]["text"], ended["usage"]["completion_tokens"]
        self.assertLess(count, 40)
        for more in (0, 1, 5):  # at the end, and in the middle
            shown, = self.server.texts(prompt, temperature=0, max_tokens=count + more, ignore_eos=True)
            self.assertTrue(shown.startswith(text + "<|endoftext|>"), shown)
            self.assertEqual(len(shown) > len(text + "<|endoftext|>"), more > 0)

    def test_a_text_ends_at_a_stop_sequence_and_at_its_end(self):
        whole = self.server.texts(PROMPTS[0], temperature=0, max_tokens=30)[0]
        stop = whole[20:25]
        choice = self.server.complete(PROMPTS[0], temperature=0, max_tokens=30, stop=["never", stop])["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), (whole[:whole.index(stop)], "stop"))

    def test_a_stop_sequence_may_end_a_text_before_min_tokens(self):
        choice = self.server.complete(PROMPTS[0], temperature=0, max_tokens=30, min_tokens=30, stop=" was")["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), (" there", "stop"))

    def test_min_p_and_logit_bias(self):
        greedy = self.server.texts(PROMPTS[0], temperature=0)
        self.assertEqual(self.server.texts(PROMPTS[0], temperature=5, min_p=1), greedy, "only the most likely one is left")
        self.assertNotEqual(self.server.texts(PROMPTS[0], temperature=5, min_p=0, seed=1), greedy)
        plain, biased = (self.server.complete(PROMPTS[0], temperature=0, max_tokens=1, logprobs=3, **keys)["choices"][0]
                         for keys in ({}, {"logit_bias": {"5": 100}}))
        self.assertNotEqual(plain["text"], biased["text"])
        same = [self.server.texts([5], max_tokens=0, echo=True)[0]]
        self.assertEqual([biased["text"]], same)
        for token, logprob in plain["logprobs"]["top_logprobs"][0].items():
            self.assertAlmostEqual(biased["logprobs"]["top_logprobs"][0][token], logprob, places=5)
        kept = self.server.texts(PROMPTS[0], temperature=0, max_tokens=8, logit_bias={str(i): 100 for i in (6, 7)})[0]
        self.assertLess(len(kept), 30)
        for keys in ({"min_p": 2}, {"logit_bias": {"x": 1}}, {"logit_bias": {"5": 101}}):
            status, _, answer = self.server.post({"prompt": "A", **keys})
            self.assertEqual((status, answer["error"]["param"]), (400, list(keys)[0]))

    def test_a_text_of_bytes_that_are_no_characters_ends_at_their_sign(self):
        choice = self.server.complete([5], temperature=0, max_tokens=3, logit_bias={"127": 100}, stop="\ufffd")["choices"][0]
        self.assertEqual((choice["text"], choice["finish_reason"]), ("", "stop"))

    def test_log_probabilities(self):
        choice = self.server.complete(PROMPTS[0], temperature=0, max_tokens=4, logprobs=3)["choices"][0]
        told = choice["logprobs"]
        self.assertEqual("".join(told["tokens"]), choice["text"])
        self.assertEqual([len(told[key]) for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset")], [4] * 4)
        for index, (token, own, top, offset) in enumerate(zip(told["tokens"], told["token_logprobs"],
                                                              told["top_logprobs"], told["text_offset"])):
            self.assertEqual(len(top), 3)
            self.assertEqual(max(top.values()), own)
            self.assertEqual(top[token], own)
            self.assertEqual(offset, len("".join(told["tokens"][:index])))
        likeliest = self.server.complete(PROMPTS[0], temperature=0, max_tokens=4, logprobs=0)["choices"][0]["logprobs"]
        self.assertEqual([list(top) for top in likeliest["top_logprobs"]], [[token] for token in told["tokens"]])

    def test_echo(self):
        text = self.server.texts(PROMPTS[1], temperature=0)[0]
        self.assertEqual(self.server.texts(PROMPTS[1], temperature=0, echo=True), [PROMPTS[1] + text])
        answer = self.server.complete(PROMPTS[1], max_tokens=0, echo=True, logprobs=2)
        choice, told = answer["choices"][0], answer["choices"][0]["logprobs"]
        self.assertEqual((choice["text"], "".join(told["tokens"])), (PROMPTS[1], PROMPTS[1]))
        self.assertEqual(answer["usage"]["completion_tokens"], 0)
        self.assertIsNone(told["token_logprobs"][0])
        self.assertIsNone(told["top_logprobs"][0])
        # They are those that a text of the same tokens has when it grows.
        grown = self.server.complete(PROMPTS[1], temperature=0, max_tokens=8, logprobs=2)["choices"][0]
        again = self.server.complete(PROMPTS[1] + grown["text"], max_tokens=0, echo=True, logprobs=2)["choices"][0]
        for was, now in zip(grown["logprobs"]["token_logprobs"], again["logprobs"]["token_logprobs"][-8:]):
            self.assertAlmostEqual(was, now, places=3)
        both = self.server.complete(PROMPTS[1], temperature=0, max_tokens=3, echo=True, logprobs=2)["choices"][0]
        self.assertEqual(len(both["logprobs"]["tokens"]), len(told["tokens"]) + 3)

    def test_offsets_count_the_characters_in_front_of_each_token(self):
        start = "Once upon a time"
        for keys, text, offsets in (
                ({"prompt": start, "max_tokens": 2, "stop": " there!"}, " there was", [0, 6]),  # held back, then not
                ({"prompt": start, "max_tokens": 5, "stop": "ere was"}, " th", [0, 3]),         # cut off
                ({"prompt": start, "max_tokens": 5, "stop": " was"}, " there", [0, 6]),
                ({"prompt": [127], "max_tokens": 1, "echo": True}, "\ufffd,", [0, 1]),
                ({"prompt": [4095, 968, 1066], "max_tokens": 0, "echo": True}, "<|endoftext|>He cut", [0, 13, 15]),
                ({"prompt": "\u00c4 \u00e9", "max_tokens": 0, "echo": True}, "\u00c4 \u00e9", [0, 0, 1, 2, 2])):
            with self.subTest(keys):
                choice = self.server.complete(temperature=0, logprobs=0, **keys)["choices"][0]
                self.assertEqual((choice["text"], choice["logprobs"]["text_offset"]), (text, offsets))
                parts = [event["choices"][0] for event in self.server.stream(temperature=0, logprobs=0, **keys)]
                self.assertEqual("".join(part["text"] for part in parts), text)
                self.assertEqual([offset for part in parts if part["logprobs"] for offset in part["logprobs"]["text_offset"]],
                                 offsets)

    def test_offsets_of_long_texts(self):
        for keys in ({"ignore_eos": True}, {"stop": ["zebra ", "\n\nThe"]}, {"temperature": 3, "seed": 5}, {"echo": True}):
            with self.subTest(keys):
                choice = self.server.complete("The <|endoftext|>fox \u00c4", **{"temperature": 0, "max_tokens": 200, "logprobs": 0, **keys})["choices"][0]
                told, place = choice["logprobs"], 0
                for token, offset in zip(told["tokens"], told["text_offset"]):
                    self.assertLessEqual(offset, len(choice["text"]))
                    if not token.startswith("bytes:") and offset < len(choice["text"]):
                        rest = choice["text"][offset:]
                        self.assertTrue(rest.startswith(token) or token.startswith(rest), (token, rest[:20]))
                    self.assertGreaterEqual(offset, place)
                    place = offset

    def test_a_stream_is_the_whole_text_in_parts(self):
        for keys in ({}, {"n": 3, "seed": 1, "temperature": 1.2}, {"echo": True}, {"logprobs": 2}, {"stop": ["the"]},
                     {"echo": True, "logprobs": 1}, {"max_tokens": 0}, {"max_tokens": 0, "echo": True, "logprobs": 1}):
            keys = {"temperature": 0, "max_tokens": 12, **keys}
            with self.subTest(keys):
                whole = self.server.complete(PROMPTS[0], **keys)
                events = list(self.server.stream(PROMPTS[0], stream_options={"include_usage": True}, **keys))
                self.assertEqual(events[-1]["choices"], [])
                self.assertEqual(events.pop()["usage"], whole["usage"])
                self.assertEqual({event["usage"] for event in events}, {None})
                for choice in whole["choices"]:
                    parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == choice["index"]]
                    self.assertEqual("".join(part["text"] for part in parts), choice["text"])
                    self.assertEqual([part["finish_reason"] for part in parts],
                                     [None] * (len(parts) - 1) + [choice["finish_reason"]])
                    if "logprobs" in keys:
                        for key in choice["logprobs"] or {}:
                            told = [entry for part in parts for entry in (part["logprobs"] or {key: []})[key]]
                            self.assertEqual(told, choice["logprobs"][key])
        for event in self.server.stream("A"):
            self.assertNotIn("usage", event)

    def test_a_stream_for_http_1_0_ends_with_the_connection(self):
        body = json.dumps({"prompt": "A", "stream": True, "max_tokens": 3})
        with self.server.socket() as client:
            client.sendall(f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            said = b"".join(iter(lambda: client.recv(65536), b""))
        self.assertNotIn(b"chunked", said)
        self.assertTrue(said.endswith(b"data: [DONE]\n\n"), said)

    def test_a_connection_serves_many_requests_also_those_sent_before_the_answer(self):
        connection = self.server.connect()
        for _ in range(3):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "A", "max_tokens": 2}),
                               {"Content-Type": "application/json"})
            self.assertEqual(connection.getresponse().read()[:1], b"{")
        connection.close()
        with self.server.socket() as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5 +
                           b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            said = b"".join(iter(lambda: client.recv(65536), b""))
        self.assertEqual(said.count(b"HTTP/1.1 200 OK"), 6)

    def test_a_body_in_chunks_and_one_that_waits_for_a_word(self):
        body = json.dumps({"prompt": "A", "max_tokens": 2}).encode()
        status, _, _ = self.server.ask("POST", "/v1/completions", iter([body[:5], body[5:]]),
                                       Content_Type="application/json; charset=utf-8")
        self.assertEqual(status, 200)
        with self.server.socket() as client:
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nConnection: close\r\n"
                           b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
            self.assertEqual(client.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            client.sendall(body)
            said = b"".join(iter(lambda: client.recv(65536), b""))
        self.assertTrue(said.startswith(b"HTTP/1.1 200 OK"), said)

    def test_metrics_count(self):
        before = self.server.metrics()
        answer = self.server.complete(PROMPTS[0], n=2, max_tokens=6, ignore_eos=True)
        self.server.post("{")
        after = self.server.metrics()
        grown = {name: after[name] - before.get(name, 0) for name in after}
        self.assertEqual(grown["staircase_prompt_tokens_total"], answer["usage"]["prompt_tokens"])
        self.assertEqual(grown["staircase_generated_tokens_total"], 12)
        self.assertEqual(grown['staircase_requests_total{path="/v1/completions",status="200"}'], 1)
        self.assertEqual(grown['staircase_requests_total{path="/v1/completions",status="400"}'], 1)
        self.assertEqual(grown["staircase_time_to_first_token_seconds_count"], 2)
        self.assertEqual(grown["staircase_time_per_output_token_seconds_count"], 2)
        self.assertEqual(self.server.load(), (0, 0))

    def test_a_prompt_is_scored_once(self):
        prompt = [5 + i % 90 for i in range(500)]
        def seconds(**keys):
            start = time.monotonic()
            answer = self.server.complete(max_tokens=0, echo=True, logprobs=1, **keys)
            return time.monotonic() - start, [choice["logprobs"] for choice in answer["choices"]]
        seconds(prompt=prompt)
        once = min(seconds(prompt=prompt[:-1] + [i])[0] for i in range(3))
        time_, told = seconds(prompt=prompt[:-1] + [9], n=64)
        self.assertTrue(all(one == told[0] for one in told))
        self.assertLess(time_, 20 * once)  # 64, where each text has its own
        time_, told = seconds(prompt=[prompt, prompt[1:] + [7]] * 20)
        for one in (0, 1):
            self.assertTrue(all(other == told[one] for other in told[one::2]))
        self.assertNotEqual(told[0], told[1])
        self.assertLess(time_, 15 * once)  # 40

    def test_metrics_tell_the_memory_of_the_cache_which_windows_make_smaller(self):
        """Two texts of 32 blocks with 16 positions of 512 bytes in each layer. Three of four layers may have a
        window, and then 21 blocks do. Both models have one shape. A table takes 4 bytes for each block of a text."""
        block, table = 16 * 512, 2 * 32 * 4
        for model, bytes_ in (("tales-qwen-1m", 4 * 64 * block + table),
                              ("tales-window-1m", 64 * block + 3 * 42 * block + 2 * table)):
            with self.subTest(model), Server("--max-batch-size", 2, model=model) as server:
                self.assertEqual(server.metrics()["staircase_cache_bytes"], bytes_)

    def test_a_prompt_that_outgrows_windows_is_continued_the_same_from_the_cache(self):
        prompt = "The fox said to the crow: " + "once upon a time there was a king who had a daughter, and " * 12
        with Server("--max-batch-size", 1, "--prefill-chunk", 100, model="tales-window-1m") as server, \
                Server("--max-batch-size", 1, "--no-prefix-caching", model="tales-window-1m") as other:
            want = other.texts(prompt, max_tokens=40, temperature=0)
            for _ in range(2):
                self.assertEqual(server.texts(prompt, max_tokens=40, temperature=0), want)
            self.assertGreater(server.metrics()["staircase_prefix_cache_hits_total"], 150)

    def test_metrics_tell_what_the_cache_held_already(self):
        def grown(prompt):
            before = self.server.metrics()
            self.server.complete(prompt, max_tokens=1)
            names = ("staircase_prefix_cache_queries_total", "staircase_prefix_cache_hits_total")
            # They are reported after the pass, whose answer may arrive earlier.
            self.assertTrue(wait_until(lambda: self.server.metrics()[names[0]] > before[names[0]]))
            after = self.server.metrics()
            return [after[name] - before[name] for name in names]
        prompt = list(range(1, 41))  # two whole blocks of 16 tokens, and half of one
        self.assertEqual(grown(prompt), [40, 0])
        self.assertEqual(grown(prompt), [40, 32])
        self.assertIn("# TYPE staircase_prefix_cache_hits_total counter\n", self.server.ask("GET", "/metrics")[2])


@unittest.skipUnless(shutil.which("node"), "no Node.js is installed")
class Page(unittest.TestCase):
    """The page's script with the least of a browser that it needs."""

    BROWSER = r"""
      const [url, values] = [process.argv[1], JSON.parse(process.argv[2])], elements = {};
      class Element {
        constructor(name) { Object.assign(this, {name, value: "", textContent: "", children: []}); }
        append(child) { this.children.push(child); }
        replaceChildren(...children) { this.children = children; }
        querySelector() { return null; }
      }
      const document = {getElementById: (id) => elements[id] ??= new Element("div"), createElement: (name) => new Element(name)};
      (async () => {
        const page = await (await fetch(url)).text();
        const script = new Function("document", "fetch", page.match(/<script>(.*)<\/script>/s)[1]);
        script(document, (path, options) => fetch(url + path, options));
        for (const id in values) document.getElementById(id).value = values[id];
        await elements.form.onsubmit({preventDefault() {}});
        console.log(JSON.stringify([elements.failure.textContent, ...elements.text.children.map((child) => {
          if (typeof child === "string") return ["plain", child, []];
          child.onmouseenter?.();
          return [child.name, child.textContent, elements.candidates?.textContent.split("\n")];
        })]));
      })();"""

    def shown(self, server, **values):
        """The failure, and of each part of the text (name, text, candidates while the mouse is there)."""
        done = subprocess.run(["node", "-e", self.BROWSER, f"http://127.0.0.1:{server.port}/", json.dumps(values)],
                              capture_output=True, text=True, timeout=60 * PATIENCE)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_prompt_text_and_candidates(self):
        keys = {"max_tokens": 12, "temperature": 1.5, "top_p": 0.9, "seed": 3}
        with Server() as server:
            wanted = server.complete(PROMPTS[0], logprobs=8, **keys)["choices"][0]
            failure, prompt, *tokens, last = self.shown(server, prompt=PROMPTS[0], **keys)
            refused = self.shown(server, prompt=PROMPTS[0], max_tokens=5000)
            page = server.ask("GET", "/")[2]
        self.assertEqual((failure, *prompt[:2]), ("", "b", PROMPTS[0]))
        self.assertRegex(page, r"#text b \{[^}]*opacity", "it looks unlike the text")
        self.assertEqual("".join(part[1] for part in (*tokens, last)), wanted["text"])
        told = wanted["logprobs"]
        for (name, _, candidates), token, top in zip(tokens, told["tokens"], told["top_logprobs"], strict=True):
            self.assertEqual((name, len(candidates)), ("span", len(top)))
            self.assertEqual([json.loads(line.split("%  ")[1]) for line in candidates if line.startswith(">")], [token])
        self.assertEqual(len(refused), 1, "there is no text")
        self.assertIn("maximum context length", refused[0])


class Errors(unittest.TestCase):
    """Each one is in OpenAI's form, and others do not notice it."""

    def setUp(self):
        self.server = Server()
        self.server.__enter__()
        self.addCleanup(self.server.__exit__, None)

    def check(self, said, status, words, key=None):
        got, header, body = said
        self.assertEqual(got, status, body)
        error = body["error"]
        self.assertEqual(sorted(error), ["code", "message", "param", "type"])
        self.assertIn(words, error["message"])
        self.assertEqual(error["param"], key)
        return header

    def test_wrong_addresses_methods_and_types(self):
        self.check(self.server.ask("GET", "/v1/chat/completions"), 404, 'nothing at "/v1/chat/completions"')
        self.check(self.server.ask("GET", "/%ff"), 404, 'nothing at "/%ff"')
        self.check(self.server.ask("POST", "/v1/modelsx"), 404, 'nothing at "/v1/modelsx"')
        header = self.check(self.server.ask("GET", "/v1/completions"), 405, "accepts POST, not GET")
        self.assertEqual(header["Allow"], "POST")
        header = self.check(self.server.ask("DELETE", "/health"), 405, "accepts GET, not DELETE")
        self.assertEqual(header["Allow"], "GET, HEAD")
        self.check(self.server.post({"prompt": "A"}, Content_Type="text/plain"), 415, "application/json")
        self.check(self.server.ask("POST", "/v1/completions", "{}"), 415, "application/json")

    def test_wrong_bodies(self):
        for body, status, words, key in [
                ("", 400, "not valid JSON", None), ('{"prompt": NaN}', 400, "not valid JSON", None),
                (b'{"prompt": "\xff"}', 400, "not valid JSON", None), ("{}", 400, "no prompt", "prompt"),
                ('{"prompt": ""}', 400, "is empty", "prompt"), ('{"prompt": [999999]}', 400, "token id", "prompt"),
                ('{"prompt": "A", "max_tokens": 5000}', 400, "this model's maximum context length is 512 tokens, but", "prompt"),
                ('{"prompt": "A", "temperature": "hot"}', 400, 'temperature is "hot"', "temperature"),
                ('{"prompt": "A", "best_of": 4, "n": 5}', 400, "best_of is 4, but it must be at least 5", "best_of"),
                ('{"prompt": "A", "model": "gpt-4"}', 404, "there is no model", "model"),
                (json.dumps({"prompt": "A", "stop": ["x"] * 20000}), 400, "stop is a list of 20000", "stop"),
                (json.dumps({"prompt": "A", "stop": ["x"] * 200000}), 400, "the body has 200001 values", None),
                ('{"prompt": "A", "max_token": 4}', 400, "did you mean max_tokens?", "max_token"),
                (json.dumps({"prompt": "A", "stop": ["x"] * 1000000}), 413, "at most 2097152 bytes", None)]:
            with self.subTest(str(body)[:60]):
                self.check(self.server.post(body), status, words, key)
        self.assertEqual(self.server.ask("GET", "/health")[0], 200)

    def test_a_body_of_100_mb_is_refused_before_it_is_read(self):
        before = memory(self.server)
        for body in (b"x" * 100_000_000, iter([b"x" * 1_000_000] * 100)):
            self.check(self.server.post(body) if isinstance(body, bytes) else
                       self.server.ask("POST", "/v1/completions", body, Content_Type="application/json"), 413, "at most")
        self.assertLess(memory(self.server) - before, 20e6)

    def test_what_is_no_http(self):
        for said in (b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                     b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):
            with self.subTest(said), self.server.socket() as client:
                client.sendall(said)
                client.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: client.recv(65536), b""))
                self.assertTrue(answer == b"" or answer.startswith(b"HTTP/1.1 400 "), answer)

    def test_headers_without_end(self):
        with self.server.socket() as client:
            answer = b""
            try:
                client.sendall(b"GET / HTTP/1.1\r\n")
                for number in range(100000):
                    client.sendall(b"X-%d: y\r\n" % number)
            except OSError:
                pass
            try:
                answer = client.recv(65536)
            except OSError:
                pass
            self.assertTrue(answer == b"" or answer.startswith(b"HTTP/1.1 431 "), answer)
        with self.server.socket() as client:
            client.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * 17000)
            self.assertTrue(client.recv(65536).startswith(b"HTTP/1.1 431 "))

    def test_slow_clients_are_let_go_and_nobody_waits_for_them(self):
        slow = []
        for _ in range(60):
            client = self.server.socket()
            self.addCleanup(client.close)
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Le")
            slow.append(client)
        silent = self.server.socket()
        self.addCleanup(silent.close)
        start = time.monotonic()
        self.server.complete("A", max_tokens=2)
        self.assertLess(time.monotonic() - start, 5 * PATIENCE)
        with self.assertRaises(OSError):
            for _ in range(30):  # a byte a second
                slow[0].sendall(b"n")
                time.sleep(1)
        for client in slow[1:]:
            self.assertTrue(client.recv(65536).startswith(b"HTTP/1.1 408 "))
        self.assertEqual(silent.recv(65536), b"")

    def test_a_client_that_never_reads_is_let_go_and_nobody_waits_for_it(self):
        body = json.dumps({"prompt": ["word " * 200] * 128, "echo": True, "logprobs": 20, "max_tokens": 20, "stream": True})
        client = socket.socket()
        self.addCleanup(client.close)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", self.server.port))
        client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                       f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
        self.assertTrue(wait_until(lambda: sum(self.server.load()) > 0))
        self.assertEqual(self.server.texts("A", temperature=0), alone([{"prompt": "A", "temperature": 0}]))
        self.assertTrue(wait_until(lambda: self.server.load() == (0, 0)))
        client.setblocking(False)

        def is_let_go():
            try:
                client.send(b"x")
            except BlockingIOError:
                return False
            except OSError:
                return True

        self.assertTrue(wait_until(is_let_go, 45))


class Keys(unittest.TestCase):
    def test_only_who_has_a_key_may_ask_the_model(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
            file.write("first key\n\n  second  \n")
            file.flush()
            with Server("--api-key-file", file.name) as server:
                for given in (None, "", "Bearer", "Bearer ", "Bearer first", "Bearer first key2", "Basic second", "second"):
                    fields = {} if given is None else {"Authorization": given}
                    with self.subTest(given):
                        for said in (server.post({"prompt": "A"}, **fields), server.ask("GET", "/v1/models", **fields)):
                            self.assertEqual(said[0], 401)
                            self.assertEqual(said[1]["WWW-Authenticate"], "Bearer")
                            self.assertEqual(said[2]["error"]["code"], "invalid_api_key")
                for key in ("first key", "second"):
                    self.assertEqual(server.post({"prompt": "A"}, Authorization=f"Bearer {key}")[0], 200)
                self.assertEqual(server.ask("GET", "/health")[0], 200)

    def test_a_key_may_have_as_many_unfinished_requests_as_it_is_allowed(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as file:
            file.write("first\nsecond\n")
            file.flush()
            with Server("--api-key-file", file.name, "--max-per-key", 2, "--max-batch-size", 8) as server:
                first, second = {"Authorization": "Bearer first"}, {"Authorization": "bearer  second"}
                short = {"prompt": "The", "max_tokens": 1}
                streams = [server.stream("The", fields=first, **Leaving.LONG) for _ in range(2)]
                self.assertTrue(wait_until(lambda: sum(server.load()) == 20))
                status, header, body = server.post(short, **first)
                self.assertEqual((status, header["Retry-After"]), (429, "1"))
                self.assertEqual(body["error"], {
                    "message": "this API key already has 2 unfinished requests and may have no more: try again when one "
                               "has ended", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded"})
                self.assertEqual(server.post(short, **second)[0], 200, "the other key has none")
                self.assertEqual(server.ask("GET", "/v1/models", **first)[0], 200)
                for wrong in ({"prompt": 5}, {"prompt": "The", "max_tokens": -1}) * 3:
                    self.assertEqual(server.post(wrong, **second)[0], 400)
                streams[0].leave()
                self.assertTrue(wait_until(lambda: server.post(short, **first)[0] == 200))
                for _ in range(20):
                    self.assertEqual(server.post(short, **first)[0], 200, "an answer ends its request")
                streams[1].leave()

    def refused(self, *options):
        done = subprocess.run([PROGRAM, "--model", "tales-6m", "--device", "cpu", *options],
                              capture_output=True, text=True, timeout=60, cwd=ROOT)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"(^|\n)error: [^\n]+\n$")
        return done.returncode, done.stderr.splitlines()[-1]

    def test_what_cannot_be_used_ends_the_program_with_one_sentence(self):
        self.assertEqual(self.refused("--port", "0", "--api-key-file", "nowhere"), (1, "error: nowhere does not exist"))
        with tempfile.NamedTemporaryFile() as file:
            self.assertEqual(self.refused("--api-key-file", file.name)[1],
                             f"error: --api-key-file {file.name}: it contains no key")
            if os.geteuid() != 0:
                os.chmod(file.name, 0)
                self.assertIn("cannot be read", self.refused("--api-key-file", file.name)[1])
        self.assertIn("is a folder", self.refused("--api-key-file", str(ROOT))[1])
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.assertEqual(self.refused("--port", str(port)),
                             (1, f"error: cannot listen on port {port} of 127.0.0.1: Address already in use"))
        self.assertIn("--host no.such.host.invalid", self.refused("--host", "no.such.host.invalid")[1])
        self.assertEqual(self.refused("--port", "65536")[0], 2)
        self.assertEqual(self.refused("--max-queue", "-1")[0], 2)
        self.assertEqual(self.refused("--max-batch-size", "0")[0], 2)

    def test_a_limit_of_keys_without_keys_is_refused(self):
        self.assertEqual(self.refused("--max-per-key", "2"), (2, "error: --max-per-key needs --api-key-file: "
                                                                           "without keys, it cannot tell clients apart"))
        self.assertEqual(self.refused("--max-per-key", "0")[0], 2)


class Texts(unittest.TestCase):
    def test_each_text_is_what_the_request_gives_alone(self):
        requests = some_requests(40, 1)
        wanted = alone(requests)
        for places, *more in ((1,), (7,), (40, "--prefill-chunk", 5)):
            with self.subTest(places=places), Server("--max-batch-size", places, *more) as server:
                order = list(range(len(requests)))
                random.Random(places).shuffle(order)

                def ask(number):
                    request = dict(requests[number])
                    if number % 2:
                        return server.texts(**request)[0]
                    return "".join(event["choices"][0]["text"] for event in server.stream(**request))

                with concurrent.futures.ThreadPoolExecutor(40) as clients:
                    texts = dict(zip(order, clients.map(ask, order)))
                self.assertEqual([texts[number] for number in range(len(requests))], wanted)


class Leaving(unittest.TestCase):
    """Requests that take many seconds: each requests ten texts of 400 tokens."""
    LONG = {"max_tokens": 400, "ignore_eos": True, "n": 10}

    def test_a_client_that_leaves_frees_its_rows_and_its_places_in_the_queue(self):
        with Server("--max-batch-size", 2) as server:
            streams = [server.stream("The", **self.LONG) for _ in range(3)]
            next(iter(streams[0]))
            self.assertTrue(wait_until(lambda: sum(server.load()) > 20))
            for left, stream in ((20, streams[2]), (10, streams[0]), (0, streams[1])):  # it waits, or grows
                stream.leave()
                self.assertTrue(wait_until(lambda: sum(server.load()) <= left, 2))
            self.assertEqual(server.metrics()["staircase_requests_left_total"], 3)
            self.assertLess(server.metrics()["staircase_generated_tokens_total"], 15 * 400,
                            "the texts ended early")

    def test_also_one_that_waits_for_the_whole_answer(self):
        with Server("--max-batch-size", 1) as server:
            client = server.socket()
            body = json.dumps({"prompt": ["The"] * 12, **self.LONG})
            client.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            self.assertTrue(wait_until(lambda: server.load()[1] == 1))
            client.close()
            self.assertTrue(wait_until(lambda: server.load() == (0, 0), 2))

    def test_while_its_prompt_goes_through_the_model(self):
        with Server("--max-batch-size", 1, "--prefill-chunk", 1) as server:
            stream = server.stream("word " * 400, max_tokens=1, n=10)
            self.assertTrue(wait_until(lambda: server.load() == (9, 1)))
            stream.leave()
            self.assertTrue(wait_until(lambda: server.load() == (0, 0), 2))
            self.assertLess(server.metrics()["staircase_time_to_first_token_seconds_count"], 5)


class Blocks(unittest.TestCase):
    def test_texts_without_blocks_wait_and_their_own_blocks_are_no_hits(self):
        with Server("--max-batch-size", 2, "--kv-blocks", 4) as server:
            streams = [server.stream([token] * 17, temperature=0, max_tokens=30, ignore_eos=True) for token in (1, 2)]
            seen = set()
            self.assertTrue(wait_until(lambda: seen.add(server.load()) or server.metrics()["staircase_generated_tokens_total"] == 60))
            for stream in streams:
                list(stream)
            metrics = server.metrics()
            self.assertEqual((metrics["staircase_prefix_cache_queries_total"], metrics["staircase_prefix_cache_hits_total"]), (34, 0))
            self.assertEqual(server.load(), (0, 0))

    def test_a_row_that_waits_for_blocks_does_not_grow(self):
        with Server("--max-batch-size", 3, "--kv-blocks", 27) as server:
            streams = [server.stream([token] * 17, temperature=0, max_tokens=400, ignore_eos=True) for token in (1, 2, 3)]
            self.assertTrue(wait_until(lambda: server.load() == (2, 1)), "two fit no longer, though all three have places")
            for stream in streams:
                stream.leave()


class Queue(unittest.TestCase):
    LONG = Leaving.LONG

    def test_a_full_queue_refuses_and_says_when_to_come_again(self):
        with Server("--max-batch-size", 1, "--max-queue", 20) as server:
            streams = [server.stream("The", **self.LONG) for _ in range(2)]
            self.assertTrue(wait_until(lambda: sum(server.load()) > 10))
            metrics = server.metrics()
            self.assertEqual(metrics["staircase_texts"], metrics["staircase_texts_waiting"] + metrics["staircase_texts_growing"])
            status, header, body = server.post({"prompt": ["The"] * 12})
            self.assertEqual((status, body["error"]["type"], body["error"]["code"], header["Retry-After"]),
                             (429, "rate_limit_error", "queue_full", "1"))
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            last = server.stream("The", max_tokens=1)
            streams[1].leave()
            self.assertTrue(wait_until(lambda: sum(server.load()) <= 11))
            streams.append(server.stream(["The"] * 10))
            self.assertTrue(wait_until(lambda: sum(server.load()) > 12))
            for stream in (streams[0], streams[2]):
                stream.leave()
            self.assertEqual(len(list(last)), 2)
            self.assertTrue(wait_until(lambda: server.load() == (0, 0)))
            self.assertEqual(len(server.texts("The", n=25, max_tokens=2)), 25, "alone even more than fit")


class Ending(unittest.TestCase):
    LONG = Leaving.LONG

    def test_sigterm_lets_the_running_end_and_takes_no_other(self):
        with Server("--max-batch-size", 1) as server:
            wanted = server.texts("The", temperature=0, max_tokens=120)[0]
            kept = server.connect()
            kept.request("GET", "/health")
            kept.getresponse().read()
            late = server.socket()
            late.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                         b"Content-Length: 15\r\nExpect: 100-continue\r\n\r\n")
            self.assertEqual(late.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
            streams = [server.stream(["The"] * 3, temperature=0, max_tokens=120) for _ in range(3)]
            self.assertTrue(wait_until(lambda: sum(server.load()) > 6))
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(wait_until(lambda: not self.can_connect(server)))
            late.sendall(b'{"prompt": [1]}')
            with late, late.makefile("rb") as file:
                answer = file.read()
            self.assertTrue(answer.startswith(b"HTTP/1.1 503 "), answer)
            self.assertIn(b"\r\nRetry-After: 1\r\n", answer)
            self.assertIn(b"this server is shutting down and accepts no more requests", answer)
            self.assertIn(b'"code":"ending"', answer)
            for stream in streams:  # one grows, the others wait: all have been taken
                texts = ["", "", ""]
                for event in stream:
                    texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
                self.assertEqual(texts, [wanted] * 3)
            self.assertEqual(server.process.wait(20 * PATIENCE), 0)
            kept.close()

    @staticmethod
    def can_connect(server):
        try:
            server.socket().close()
            return True
        except OSError:
            return False

    def test_without_work_it_ends_at_once(self):
        with Server() as server:
            kept = server.connect()
            kept.request("GET", "/health")
            kept.getresponse().read()
            start = time.monotonic()
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.process.wait(20 * PATIENCE), 0)
            self.assertLess(time.monotonic() - start, 3 * PATIENCE)

    def test_a_second_signal_ends_at_once(self):
        with Server("--max-batch-size", 1, ends_well=False) as server:
            streams = [server.stream(["The"] * 10, **self.LONG) for _ in range(2)]
            self.assertTrue(wait_until(lambda: sum(server.load()) > 100))
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(wait_until(lambda: not self.can_connect(server)))
            self.assertIsNone(server.process.poll())
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(5 * PATIENCE), -signal.SIGTERM)
            for stream in streams:
                stream.leave()


class Load(unittest.TestCase):
    def test_many_streams_at_once_some_of_which_leave(self):
        """What the sanitizers watch."""
        count = 256
        wanted = alone([{"prompt": prompt, "temperature": 0, "max_tokens": 10} for prompt in PROMPTS])
        with Server("--max-batch-size", 32, "--prefill-chunk", 16, "--max-queue", count) as server:
            texts, broken = {}, []

            def client(number):
                try:
                    stream = server.stream(PROMPTS[number % 4], temperature=0, max_tokens=10, logprobs=number % 3 or None)
                    if number % 8 == 7:
                        if number % 16 == 7:
                            next(iter(stream))
                        return stream.leave()
                    texts[number] = "".join(event["choices"][0]["text"] for event in stream)
                except Exception as error:  # noqa: BLE001
                    broken.append(f"{number}: {error!r}")

            clients = [threading.Thread(target=client, args=(number,)) for number in range(count)]
            for thread in clients:
                thread.start()
            for thread in clients:
                thread.join()
            self.assertEqual(broken, [])
            self.assertEqual(texts, {number: wanted[number % 4] for number in range(count) if number % 8 != 7})
            self.assertTrue(wait_until(lambda: server.load() == (0, 0)))


if __name__ == "__main__":
    unittest.main()
