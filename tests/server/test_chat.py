"""Chats as clients see them: the answer and its stream, rejected requests, templates that loop, and other origins. Also
the cache that the next turn finds, and the answers of transformers for a real model."""

import concurrent.futures
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from support import CHATS, PATIENCE, ROOT, TEMPLATE, ChatServer, Server, recommending, wait_until

LONG = ROOT / "models/tales-llama-1m"  # its positions are rotations, so its context may be longer
SMOLLM2 = ROOT / "models/smollm2-135m-instruct"
LOOP = "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}"


def user(content):
    return {"role": "user", "content": content}


def post(server, path, body, **fields):
    text = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return server.ask("POST", path, text, **{"Content_Type": "application/json", **fields})


def chat(server, messages, **keys):
    """The answer to a chat that must be taken."""
    messages = [user(messages)] if isinstance(messages, str) else messages
    status, _, answer = post(server, "/v1/chat/completions", {"messages": messages, **keys})
    if status != 200:
        raise AssertionError(f"{status}: {answer}")
    return answer


def events(server, messages, **keys):
    """The events of a stream, whose end must come."""
    connection = server.connect()
    try:
        connection.request("POST", "/v1/chat/completions",
                           json.dumps({"messages": [user(messages)], "stream": True, **keys}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        lines = [line[len(b"data: "):].strip() for line in response.read().split(b"\n") if line.startswith(b"data: ")]
    finally:
        connection.close()
    if lines[-1] != b"[DONE]":
        raise AssertionError("a stream without its end")
    return [json.loads(line) for line in lines[:-1]]


def content(answer, index=0):
    return answer["choices"][index]["message"]["content"]


def cached(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


class LongPrompts(unittest.TestCase):
    def test_a_client_that_leaves_stops_its_prompt(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory())) / "long"
        shutil.copytree(LONG, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
        for chunk, options in ((512, []), (304, ["--prefill-chunk", 304])):
            with Server("--max-batch-size", 1, "--context", 8192, *options, model=str(folder), program=CHATS) as server:
                prompt = "the king and the queen " * 1200
                stream = server.stream(prompt, max_tokens=1)
                self.assertTrue(wait_until(lambda: server.load() == (0, 1)))
                stream.leave()
                use = server.complete(prompt, max_tokens=1)["usage"]
                cached = use["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached % chunk, 0)  # whole passes
                self.assertGreater(cached, 0)
                self.assertLess(cached, use["prompt_tokens"] - chunk)


class EveryOption(unittest.TestCase):
    """The list is the program's own: a new option has to show an effect here."""

    def get(self, server, path="/v1/models", **fields):
        return server.ask("GET", path, **fields)

    def model(self, server):
        return self.get(server)[2]["data"][0]

    def most_at_once(self, server):
        """How many of two texts were decoded together."""
        stream = server.stream("The", max_tokens=400, ignore_eos=True, n=2)
        loads = []
        self.assertTrue(wait_until(lambda: loads.append(server.load()) or loads[-1] == (0, 2) or
                                   loads[-1] == (0, 0) and any(sum(load) for load in loads)))
        stream.leave()
        return max(growing for _, growing in loads)

    def second_status(self, server, **fields):
        """What a client gets while another one's texts are decoded."""
        stream = server.stream("The", fields, max_tokens=400, ignore_eos=True)
        self.assertTrue(wait_until(lambda: server.load()[1] == 1))
        status = server.post({"prompt": "The", "max_tokens": 1}, **fields)[0]
        stream.leave()
        return status

    def cached(self, server):
        """Prompt tokens that are known the second time."""
        for _ in range(2):
            use = server.complete("the king and the queen " * 10, max_tokens=1)["usage"]
        return use["prompt_tokens_details"]["cached_tokens"]

    def is_here(self, server):
        """Whether the server listens at 127.0.0.1."""
        try:
            return self.get(server)[0] == 200
        except ConnectionRefusedError:
            return False

    def test_each_option_of_the_server_has_an_effect(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "keys").write_text("secret\n")
        (folder / "other.jinja").write_text("{{ messages[0].content }}!")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        rendered = {"messages": [user("Hello")]}
        logprobs = {"max_tokens": 1, "logprobs": 1, "temperature": 0}
        effects = {  # option: its value, and what a client sees of it
            "adapter": ("fables=aesop", lambda server: len(server.ask("GET", "/v1/models")[2]["data"])),
            "model": ("tales-1m", lambda server: self.model(server)["id"]),
            "threads": (5, lambda server: re.search(r"Threads:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())[1]),
            "context": (100, lambda server: self.model(server)["context_length"]),
            "host": ("127.0.0.2", self.is_here),
            "port": (port, lambda server: server.port == port),
            "allowed-host": ("example.org", lambda server: self.get(server, Host="example.org")[0]),
            "cors-origin": ("https://example.org", lambda server: self.get(server, Origin="https://example.org")[1]["Access-Control-Allow-Origin"]),
            "api-key-file": (folder / "keys", lambda server: self.get(server)[0]),
            "max-per-key": (1, lambda server: self.second_status(server, Authorization="Bearer secret"), "--api-key-file", folder / "keys"),
            "max-batch-size": (1, self.most_at_once),
            "max-queue": (0, self.second_status, "--max-batch-size", 1),
            "chat-template": (folder / "other.jinja", lambda server: post(server, "/apply-template", rendered)[2]),
            "kv-blocks": (4, lambda server: self.model(server)["context_length"]),
            "no-prefix-caching": (None, self.cached),
            "cache-file": (folder / "cache", lambda server: (folder / "cache.lock").exists()),
            "dtype": ("int4", lambda server: server.complete("The", **logprobs)["choices"][0]["logprobs"]),
            "cache-dtype": ("int8", lambda server: server.complete("The king", **logprobs)["choices"][0]["logprobs"]),
        }
        listed = subprocess.run([CHATS, "--help"], capture_output=True, text=True).stdout
        names = re.findall(r"(?m)^  (?:-\w,)?--([\w-]+)", listed)
        self.assertEqual({name.replace("prefix", "no-prefix") for name in names} - {"help"}, set(effects) | {"device", "prefill-chunk"})
        for name, (value, look, *more) in effects.items():
            with self.subTest(name):
                found = []
                for option in ([], [f"--{name}"] if value is None else [f"--{name}", str(value)]):
                    server = Server(*more, program=CHATS)
                    if option and option[0] in server.options:
                        at = server.options.index(option[0])
                        server.options[at:at + 2] = []
                    server.options += option
                    server.listens = r"http://127\.0\.0\.[12]"
                    with server:
                        found.append(look(server))
                self.assertNotEqual(*found)
        refused = subprocess.run([CHATS, "--device", "cuda"], capture_output=True, text=True,
                                 env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        self.assertIn("error: --device cuda: ", refused.stderr)


class Chats(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ChatServer())

    def refused(self, body, status=400):
        found, _, answer = post(self.server, "/v1/chat/completions", body)
        self.assertEqual(found, status, answer)
        return answer["error"]

    def test_an_answer_is_the_completion_of_the_prompt_that_the_template_writes(self):
        messages = [{"role": "system", "content": "Tell tales."}, user("Once upon a time")]
        prompt = post(self.server, "/apply-template", {"messages": messages})[2]["prompt"]
        self.assertEqual(prompt, "system:Tell tales.<|endoftext|>\nuser:Once upon a time<|endoftext|>\nassistant:")
        tokens = post(self.server, "/tokenize", {"messages": messages})[2]
        self.assertEqual((tokens["tokens"].count(4095), tokens["count"]), (2, len(tokens["tokens"])))
        answer = chat(self.server, messages, temperature=0, max_tokens=20, n=2)
        self.assertEqual([content(answer, i) for i in (0, 1)],
                         self.server.texts(tokens["tokens"], temperature=0, max_tokens=20) * 2)
        self.assertEqual(list(answer), ["id", "object", "created", "model", "choices", "usage"])
        self.assertEqual((answer["object"], answer["model"]), ("chat.completion", "talker"))
        self.assertEqual(answer["usage"]["prompt_tokens"], tokens["count"])

    def test_a_stream_has_the_role_first_and_the_reason_last(self):
        keys = {"temperature": 0, "max_tokens": 12}
        found = events(self.server, "A fox", stream_options={"include_usage": True}, **keys)
        self.assertEqual(len({(event["id"], event["created"], event["object"]) for event in found}), 1)
        *parts, last, use = found
        deltas = [part["choices"][0]["delta"] for part in parts]
        self.assertEqual(deltas[0], {"role": "assistant", "content": ""})
        self.assertEqual("".join(delta["content"] for delta in deltas), content(chat(self.server, "A fox", **keys)))
        self.assertEqual({part["choices"][0]["finish_reason"] for part in parts}, {None})
        self.assertEqual((last["choices"][0]["delta"], last["choices"][0]["finish_reason"]), ({}, "length"))
        self.assertEqual((use["choices"], use["usage"]["completion_tokens"]), ([], 12))

    def test_without_a_limit_an_answer_may_fill_the_context(self):
        answer = chat(self.server, "A fox", temperature=0, ignore_eos=True)
        self.assertEqual(answer["usage"]["total_tokens"], 512)
        self.assertEqual(answer["choices"][0]["finish_reason"], "length")
        for keys in ({"max_tokens": 600}, {}):
            error = self.refused({"messages": [user("A fox and a crow. " * (200 if not keys else 1))], **keys})
            self.assertEqual(error["code"], "context_length_exceeded")
            self.assertRegex(error["message"], r"512 tokens, but the prompt has \d+ and")

    def test_an_answer_ends_quietly_at_the_mark_of_an_end(self):
        whole = content(chat(self.server, "A fox", temperature=0, max_tokens=30))
        answer = chat(self.server, "A fox", temperature=0, max_tokens=30, stop=[whole[10:14]])
        self.assertEqual(content(answer), whole[:whole.index(whole[10:14])])
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
        marked = chat(self.server, "A fox", temperature=0, max_tokens=5, ignore_eos=True, stop=["<|endoftext|>"],
                      logit_bias={"4095": 100})
        self.assertEqual((content(marked), marked["choices"][0]["finish_reason"]), ("", "stop"))

    def test_a_mark_in_a_message_is_text(self):
        count = post(self.server, "/tokenize", {"messages": [user("<|endoftext|>")]})[2]
        self.assertEqual(count["tokens"].count(4095), 1, "the template's own")
        text = post(self.server, "/detokenize", {"tokens": count["tokens"]})[2]["prompt"]
        self.assertEqual(text, "user:<|endoftext|><|endoftext|>\nassistant:")

    def test_bad_messages_are_named(self):
        for messages, key in (([], "messages"), (None, "messages"),
                              ([{"role": "king", "content": "a"}], "messages[0].role"),
                              ([{"role": "user", "content": None}], "messages[0].content"),
                              ([user([{"type": "image_url", "image_url": {"url": "x"}}])], "messages[0].content[0]"),
                              ([user("a"), {"role": "assistant", "content": "b", "tool_calls": [{}]}],
                               "messages[1].tool_calls[0]")):
            self.assertEqual(self.refused({"messages": messages})["param"], key)
        self.assertEqual(self.refused({"messages": [user("a")], "tools": [{}]})["param"], "tools[0].type")
        self.assertEqual(self.refused({"messages": [user("a" * 10 * 2**20)]}, 413)["param"], None)
        self.assertIn("512 tokens", self.refused({"messages": [user("a")] * 1000})["message"])
        self.assertEqual(self.server.ask("GET", "/v1/chat/completions")[0], 405)

    def test_models_and_description_know_chats(self):
        self.assertEqual(self.server.ask("GET", "/v1/models")[2]["data"][0]["context_length"], 512)
        self.assertEqual(self.server.ask("GET", "/v1/models/talker")[2]["context_length"], 512)
        description = self.server.ask("GET", "/openapi.json")[2]
        self.assertLessEqual({"/v1/chat/completions", "/tokenize", "/detokenize", "/apply-template"},
                             set(description["paths"]))
        request = description["components"]["schemas"]["ChatRequest"]
        self.assertEqual([request["properties"][key]["maximum"] for key in ("max_tokens", "max_completion_tokens")], [512, 512])
        schemas = description["components"]["schemas"]
        for body in ("CompletionRequest", "ChatRequest", "TokenizeRequest", "DetokenizeRequest", "TemplateRequest"):
            self.assertEqual(schemas[body]["properties"]["model"]["enum"], ["talker", None])
        self.assertEqual(schemas["TokenId"]["maximum"], 4095)
        model = description["paths"]["/v1/models/{model}"]["get"]["parameters"][0]
        self.assertEqual(model["schema"]["enum"], ["talker"])
        chat(self.server, "A", max_tokens=1)
        count = 'staircase_requests_total{path="/v1/chat/completions",status="200"}'
        self.assertGreater(self.server.metrics()[count], 0)

    def test_other_origins_are_not_served(self):
        status, header, _ = self.server.ask("OPTIONS", "/v1/chat/completions", Origin="https://a.example",
                                            Access_Control_Request_Method="POST")
        self.assertEqual((status, header["Access-Control-Allow-Origin"]), (405, None))
        header = self.server.ask("GET", "/health", Origin="https://a.example")[1]
        self.assertIsNone(header["Access-Control-Allow-Origin"])


class Cache(unittest.TestCase):
    def test_the_next_turn_finds_a_sampled_answer_also_after_a_title(self):
        with ChatServer() as server:
            for seed in range(4):
                messages = [user(f"Tale {seed}: " + "once there was a fox and a crow. " * 8)]
                for turn in range(3):
                    answer = chat(server, messages, temperature=1.2, top_k=200, seed=seed, max_tokens=50,
                                  ignore_eos=True)
                    before = answer["usage"]["total_tokens"]
                    messages += [{"role": "assistant", "content": content(answer)}, user("And then?")]
                    chat(server, f"A title for {content(answer)}"[:200], temperature=0.5, max_tokens=5)
                    found = cached(chat(server, messages, max_tokens=1))
                    # The last token of an answer never went through the model.
                    self.assertEqual(found, before - 1, f"seed {seed}, turn {turn}")
            self.assertEqual(server.metrics()["staircase_texts_growing"], 0)  # those that are kept do not grow


class CacheFile(unittest.TestCase):
    def setUp(self):
        self.file = Path(self.enterContext(tempfile.TemporaryDirectory())) / "server.cache"

    def server(self, *options, **more):
        return Server("--cache-file", self.file, *options, program=CHATS, **more)

    def ask(self, server, prompt):
        """The text and the prompt tokens that were cached."""
        answer = server.complete(prompt, max_tokens=20, temperature=0)
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def test_a_server_that_starts_again_has_the_texts_of_the_one_before(self):
        prompt = "A fox met a crow in the wood. " * 9
        with self.server() as server:
            text, cached = self.ask(server, prompt)
            self.assertEqual(cached, 0)
            again = self.ask(server, prompt + text + " And then?")
        for program in [CHATS, *filter(Path.is_file, Path(CHATS).parent.glob("12[23]-*"))]:
            with Server("--cache-file", self.file, program=program) as server:
                self.assertIn("saved texts are in the cache.", server.said())
                self.assertEqual(self.ask(server, prompt + text + " And then?")[0], again[0])
                self.assertGreater(self.ask(server, prompt)[1], 50)

    def test_a_smaller_cache_counts_the_texts_that_it_has(self):
        with self.server() as server:
            for animal in ("fox", "lion", "wolf"):
                self.ask(server, f"A {animal} met a crow in the wood. " * 9)
        for blocks, count in ((100, 3), (14, 2), (7, 1)):
            with self.server("--kv-blocks", blocks, ends_well=False) as server:
                self.assertIn(f"{count} of 3 saved texts are in the cache.", server.said())
                server.process.kill()

    def test_a_server_that_is_killed_leaves_the_file_of_the_one_before(self):
        with self.server() as server:
            self.ask(server, "A fox met a crow in the wood. " * 9)
        before = self.file.read_bytes()
        with self.server(ends_well=False) as server:
            self.ask(server, "A lion met a mouse in the hall. " * 9)
            server.process.kill()
        self.assertEqual(self.file.read_bytes(), before)
        with self.server() as server:
            self.assertGreater(self.ask(server, "A fox met a crow in the wood. " * 9)[1], 50)
            self.assertLess(self.ask(server, "A lion met a mouse in the hall. " * 9)[1], 50)

    def test_what_cannot_be_restored_is_refused_in_one_sentence(self):
        def refusal(*options, model="tales-6m"):
            done = subprocess.run([CHATS, "--model", model, "--port", "0", "--cache-file", self.file, *options],
                                  capture_output=True, text=True, timeout=100)
            self.assertEqual((done.stdout, done.stderr.count("error: ")), ("", 1), done.stderr)
            return done.returncode, done.stderr.splitlines()[-1]

        with self.server() as server:
            self.assertEqual(refusal(), (1, f"error: {self.file} is in use by another program; end that one, or choose another file"))
            self.ask(server, "A fox met a crow in the wood.")
        self.assertEqual(refusal(model="tales-window-1m"),
                         (1, f"error: {self.file} was saved with another model; use the one that it began with, or another file"))
        self.assertEqual(refusal("--no-prefix-caching"), (2, "error: --cache-file needs --prefix-caching, which is off"))
        self.assertEqual(refusal("--dtype", "bfloat16"),
                         (1, f"error: {self.file} was saved with --dtype float32, and this program uses bfloat16; choose float32, or "
                             "another file"))
        self.file.write_bytes(self.file.read_bytes()[:-1])
        self.assertIn(f"error: {self.file} is cut off after", refusal()[1])


class Reasoning(unittest.TestCase):
    def test_a_template_that_opens_the_thoughts_makes_all_before_their_end_reasoning(self):
        keys = {"temperature": 0, "max_tokens": 30}
        with ChatServer(template=TEMPLATE.replace("assistant:", "assistant:<think>\n")) as server:
            plain = content(chat(server, "A fox", **keys))
            first, last = plain[:12], plain[12:20]
            for more, reasoning, rest in (({}, plain, ""), ({"stop": [last]}, first, ""), ({"max_tokens": 0}, None, "")):
                answer = chat(server, "A fox", **{**keys, **more}, separate_reasoning=True)["choices"][0]
                self.assertEqual(answer["message"]["content"], rest)
                self.assertEqual((answer["message"]["reasoning_content"] or "").strip(), (reasoning or "").strip())
                self.assertEqual(answer["finish_reason"], "stop" if more.get("stop") else "length")
                deltas = [event["choices"][0]["delta"] for event in
                          events(server, "A fox", **{**keys, **more}, separate_reasoning=True)]
                self.assertEqual("".join(delta.get("reasoning_content", "") for delta in deltas),
                                 answer["message"]["reasoning_content"] or "")
                self.assertEqual("".join(delta.get("content", "") for delta in deltas), rest)
            status, _, answer = post(server, "/v1/chat/completions", {"messages": [user("A")], "separate_reasonin": True})
            self.assertIn("did you mean separate_reasoning?", answer["error"]["message"])


class Templates(unittest.TestCase):
    def test_a_model_without_a_template_only_continues_texts(self):
        with Server(program=CHATS) as server:
            status, _, answer = post(server, "/v1/chat/completions", {"messages": [user("Hello")]})
            self.assertEqual((status, answer["error"]["message"]),
                             (400, "this model continues texts; it was not trained to answer: use /v1/completions"))
            self.assertEqual(len(server.texts("A fox")), 1)
            tokens = post(server, "/tokenize", {"prompt": "A fox"})[2]
            self.assertEqual((tokens["count"], tokens["max_model_len"]), (len(tokens["tokens"]), 512))
            self.assertEqual(post(server, "/detokenize", {"tokens": tokens["tokens"]})[2], {"prompt": "A fox"})

    def test_the_page_is_for_chats_if_the_template_writes_any(self):
        needs = "{% if messages[0].role != 'system' %}{{ raise_exception('none') }}{% endif %}a"
        for template, chats in ((needs, True), (needs.replace("!=", "=="), True), ("{{ raise_exception('none') }}", False)):
            with self.subTest(template), ChatServer(template=template) as server:
                page = server.ask("GET", "/")[2]
                self.assertEqual('id="question"' in page, chats)

    def test_counters_are_zero_before_anything_is_counted(self):
        with ChatServer() as server:
            metrics = server.metrics()
            for name in ("requests_left", "prompt_tokens", "generated_tokens", "prefix_cache_hits", "prefix_cache_queries"):
                self.assertEqual(metrics.get(f"staircase_{name}_total"), 0, name)

    def test_a_template_that_cannot_be_read_refuses_chats_alone(self):
        with ChatServer(template="{% nope %}") as server:
            status, _, answer = post(server, "/v1/chat/completions", {"messages": [user("Hello")]})
            self.assertEqual(status, 400)
            self.assertRegex(answer["error"]["message"], "chat_template.jinja: the template's line 1")
            self.assertEqual(len(server.texts("A fox")), 1)
            self.assertIn("warning: ", server.said())

    def test_a_template_that_loops_blocks_no_one_else(self):
        with ChatServer(template=LOOP) as server:
            done, slowest = threading.Event(), 0.0

            def loop():
                while not done.is_set():
                    status, _, answer = post(server, "/v1/chat/completions", {"messages": [user("Hello")]})
                    self.assertEqual(status, 400, answer)

            with concurrent.futures.ThreadPoolExecutor() as threads:
                loops = [threads.submit(loop) for _ in range(4)]
                try:
                    for _ in range(50):
                        begin = time.monotonic()
                        self.assertEqual(server.ask("GET", "/health")[0], 200)
                        slowest = max(slowest, time.monotonic() - begin)
                        time.sleep(0.01)
                    begin = time.monotonic()
                    server.texts("A fox", max_tokens=5)
                    completion = time.monotonic() - begin
                finally:
                    done.set()
                for one in loops:
                    one.result()
            self.assertLess(slowest, 0.5 * PATIENCE)
            self.assertLess(completion, 2 * PATIENCE)


class Recommendations(unittest.TestCase):
    def test_a_chat_has_what_its_model_recommends_unless_its_body_says_otherwise(self):
        settings = {"temperature": 0.9, "top_k": 40, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.3}
        plain = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}

        def answers(server, **keys):
            return [content(chat(server, "Hello", seed=seed, max_tokens=30, **keys)) for seed in (1, 2)]

        with ChatServer() as server:
            drawn, chosen, greedy = answers(server), answers(server, **settings), answers(server, temperature=0)
            completion = server.texts("A fox", seed=1)
            alone = {name: answers(server, **{name: value}) for name, value in settings.items()}
            self.assertEqual(len({str(one) for one in (drawn, chosen, greedy, *alone.values())}), 8)
        with recommending(do_sample=True, num_beams=4, **settings) as server:
            self.assertEqual(answers(server), chosen)
            self.assertEqual(answers(server, **plain), drawn)
            for name, value in settings.items():
                self.assertEqual(answers(server, **{**plain, name: None}), alone[name], name)
            self.assertEqual(server.texts("A fox", seed=1), completion)
            schemas = server.ask("GET", "/openapi.json")[2]["components"]["schemas"]
            for key in ("default", "x-recommended"):  # the page shows what differs from the usual default
                self.assertEqual({name: schemas["ChatRequest"]["properties"][name].get(key) for name in settings}, settings)
            self.assertNotIn("x-recommended", str(schemas["CompletionRequest"]))
            self.assertEqual(schemas["CompletionRequest"]["properties"]["temperature"]["default"], 1)
            self.assertIn("generation_config.json sets do_sample true, temperature 0.9, top_k 40, top_p 0.95, min_p 0.02, "
                          "repetition_penalty 1.3 for chats; requests override it\n", server.said())
            self.assertIn("generation_config.json sets num_beams 4, which nothing reads here", server.said())
        with recommending(do_sample=False, temperature=0.9) as server:
            self.assertEqual(answers(server), greedy)
            self.assertEqual(answers(server, temperature=1), drawn)

    def test_a_server_does_not_begin_with_values_that_no_request_could_have(self):
        for settings, sentence in (({"temperature": -1}, "temperature is -1, but it must be between 0 and 100"),
                                   ({"top_k": 2.5}, "top_k is 2.5"), ({"top_p": [1]}, "top_p is"), ({"min_p": "x"}, "min_p is"),
                                   ({"repetition_penalty": 0}, "repetition_penalty is 0"), ({"do_sample": 1}, "do_sample is 1"),
                                   ({"suppress_tokens": [5]}, "suppress_tokens is set, but chats cannot suppress tokens")):
            with self.subTest(settings):
                server = recommending(**settings)
                done = subprocess.run(server.options, cwd=ROOT, capture_output=True, text=True, timeout=60 * PATIENCE)
                server.folder.cleanup()
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertIn(f"error: {server.model}/generation_config.json: {sentence}", done.stderr)


class Origins(unittest.TestCase):
    def test_pages_of_a_given_origin_may_ask(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("secret\n")
            keys.flush()
            with ChatServer("--cors-origin", "HTTPS://A.example/", "--api-key-file", keys.name) as server:
                asks = {"Access_Control_Request_Method": "POST",
                        "Access_Control_Request_Headers": "authorization,x-more"}
                status, header, _ = server.ask("OPTIONS", "/v1/chat/completions", Origin="https://a.example", **asks)
                self.assertEqual((status, header["Access-Control-Allow-Origin"]), (200, "https://a.example"))
                self.assertEqual(header["Access-Control-Allow-Headers"], "authorization,x-more")
                self.assertIn("POST", header["Access-Control-Allow-Methods"])
                status, header, _ = server.ask("OPTIONS", "/v1/chat/completions", Origin="https://b.example", **asks)
                self.assertEqual((status, header["Access-Control-Allow-Origin"], header["Vary"]), (405, None, "Origin"))
                # Errors as well: the page is to read what was wrong.
                status, header, _ = post(server, "/v1/chat/completions", {}, Origin="https://a.example")
                self.assertEqual((status, header["Access-Control-Allow-Origin"]), (401, "https://a.example"))
                for path in ("/tokenize", "/detokenize", "/apply-template"):
                    self.assertEqual(post(server, path, {})[0], 401)
                    self.assertEqual(post(server, path, {}, Authorization="Bearer secret")[0], 400)
                status, header, _ = post(server, "/v1/chat/completions", {"messages": [user("A")], "max_tokens": 1},
                                         Origin="https://a.example", Authorization="Bearer secret")
                self.assertEqual((status, header["Access-Control-Allow-Origin"]), (200, "https://a.example"))


    def test_pages_of_any_origin_may_ask_where_each_is_allowed(self):
        with ChatServer() as server:  # an answer that is the same for all origins is kept for all
            header = server.ask("GET", "/health", Origin="https://a.example")[1]
            self.assertEqual((header["Access-Control-Allow-Origin"], header["Vary"]), (None, None))
        for options in (("--cors-origin", "*"), ("--cors-origin", "https://b.example", "--cors-origin", "*")):
            with self.subTest(options), ChatServer(*options) as server:
                for origin in ("https://a.example", "http://localhost:5173", "null"):
                    status, header, _ = server.ask("OPTIONS", "/v1/chat/completions", Origin=origin,
                                                   Access_Control_Request_Method="POST")
                    self.assertEqual((status, header["Access-Control-Allow-Origin"]), (200, origin))
                self.assertIsNone(server.ask("GET", "/health")[1]["Access-Control-Allow-Origin"])


@unittest.skipUnless(SMOLLM2.is_dir(), "the model is not here: tools/download smollm2-135m-instruct brings it")
class RealModel(unittest.TestCase):
    def test_prompts_tokens_and_greedy_answers_are_those_of_transformers(self):
        cases = json.loads((ROOT / "tests/reference/smollm2.json").read_text(encoding="utf-8"))["chat"]
        with Server(model=str(SMOLLM2), program=CHATS) as server:
            for case in cases:
                messages = {"messages": case["messages"]}
                with self.subTest(case["messages"][-1]["content"]):
                    self.assertEqual(post(server, "/apply-template", messages)[2]["prompt"], case["rendered"])
                    self.assertEqual(post(server, "/tokenize", messages)[2]["tokens"], case["ids"])
                    answer = chat(server, case["messages"], temperature=0, max_tokens=len(case["greedy"]))
                    self.assertEqual(content(answer), case["text"].removesuffix("<|im_end|>"))
                    reason = "stop" if case["text"].endswith("<|im_end|>") else "length"
                    self.assertEqual(answer["choices"][0]["finish_reason"], reason)


if __name__ == "__main__":
    unittest.main()
