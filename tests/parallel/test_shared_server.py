"""One model that processes share, served by the first of them: its answers, its end, and broken ranks."""

import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "server"))
import test_balancer  # noqa: E402
from mpi import VARIABLES  # noqa: E402
from support import CHATS, PATIENCE, PROGRAM, ROOT, TEMPLATE, Server, wait_until  # noqa: E402

os.environ.update(VARIABLES, OMPI_MCA_mpi_yield_when_idle="1")
MODEL = "tales-llama-1m"
LONG = {"prompt": "A fox", "max_tokens": 450, "temperature": 0, "ignore_eos": True}
REQUESTS = [
    {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0},
    {"prompt": ["The fox said to the crow:", "A Lion"], "max_tokens": 30, "temperature": 0.9, "seed": 4, "n": 2},
    {"prompt": "A Lion", "max_tokens": 30, "top_k": 20, "min_p": 0.02, "seed": 11, "logit_bias": {"13": -5}},
    {"prompt": "A mouse ran", "max_tokens": 40, "temperature": 0, "frequency_penalty": 0.7, "stop": ["."]},
    {"prompt": "The dog", "max_tokens": 25, "top_p": 0.8, "seed": 7, "repetition_penalty": 1.2, "ignore_eos": True},
    {"prompt": "A long tale of a fox, a crow and a piece of cheese. " * 5, "max_tokens": 10, "temperature": 0},
]


def arguments(*options, model=MODEL):
    return ["--model", model, "--device", "cpu", "--threads", "1", "--port", "0", *map(str, options)]


class SharedServer(Server):
    """The same server on several ranks. mpirun passes SIGUSR1 on."""

    def __init__(self, *options, ranks=2, program=PROGRAM, model=MODEL, ends_well=True):
        super().__init__(ends_well=ends_well)
        self.options = ["mpirun", "-np", str(ranks), str(program), *arguments(*options, model=model)]

    def __enter__(self):
        super().__enter__()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.ranks = list(map(int, children))
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            wait_until(lambda: self.process.poll() is not None)
        super().__exit__(*error)

    def alive(self):
        return [rank for rank in self.ranks if Path(f"/proc/{rank}/exe").exists()]

    def sentences(self):
        return [line for line in self.said().splitlines() if line.startswith("error:")]


def alone(*options, program=PROGRAM):
    server = Server(program=program)
    server.options = [str(program), *arguments(*options)]
    return server


def text_of(stream):
    return "".join(event["choices"][0]["text"] for event in stream)


class Answers(unittest.TestCase):
    def test_the_answers_are_those_of_one_process(self):
        with alone() as server:
            wanted = [server.texts(**request) for request in REQUESTS]
        with SharedServer("--max-batch-size", 3, "--prefill-chunk", 16) as server:
            with concurrent.futures.ThreadPoolExecutor(6) as clients:
                self.assertEqual(list(clients.map(lambda request: server.texts(**request), REQUESTS)), wanted)
                single = [request for request in REQUESTS if "n" not in request]
                streams = list(clients.map(lambda request: text_of(server.stream(**request)), single))
            self.assertEqual(streams, [text for (text, *_), request in zip(wanted, REQUESTS) if "n" not in request])
            metrics = server.metrics()
            self.assertEqual(metrics["staircase_texts"], 0)
            self.assertEqual(metrics['staircase_requests_total{path="/v1/completions",status="200"}'],
                             len(REQUESTS) + len(single))
            self.assertEqual(server.ask("GET", "/v1/models")[2]["data"][0]["id"], MODEL)

    def test_prompts_are_scored_by_all(self):
        request = {"prompt": "Once upon a time there was a fox", "max_tokens": 0, "echo": True, "logprobs": 2}

        def scores(server):
            return server.complete(**request)["choices"][0]["logprobs"]["token_logprobs"]
        with alone() as server:
            wanted = scores(server)
        with SharedServer() as server:
            for got, want in zip(scores(server)[1:], wanted[1:], strict=True):
                self.assertAlmostEqual(got, want, delta=1e-4)

    def test_a_conversation_goes_on_where_it_was(self):
        def talk(server):
            answers, messages = [], []
            for content in ("A fox", "And then?"):
                messages.append({"role": "user", "content": content})
                body = {"messages": messages, "max_tokens": 30, "temperature": 0.8, "seed": 3}
                _, _, answer = server.ask("POST", "/v1/chat/completions", json.dumps(body), Content_Type="application/json")
                messages.append(answer["choices"][0]["message"])
                answers.append((messages[-1]["content"], answer["usage"]))
            return answers
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write(TEMPLATE)
            template.flush()
            options = ("--chat-template", template.name)
            with alone(*options, program=CHATS) as server:
                wanted = talk(server)
            with SharedServer(*options, program=CHATS) as server:
                self.assertEqual(talk(server), wanted)
        self.assertGreater(wanted[1][1]["prompt_tokens_details"]["cached_tokens"], 30)

    def test_a_client_that_leaves_is_forgotten_on_all_ranks(self):
        with SharedServer("--max-batch-size", 1) as server:
            before = server.texts(**REQUESTS[0])
            stream = server.stream(**LONG)
            next(iter(stream))
            stream.leave()
            self.assertEqual(server.texts(**REQUESTS[0]), before)
            metrics = server.metrics()
            self.assertEqual((metrics["staircase_requests_left_total"], metrics["staircase_texts"]), (1, 0))
            self.assertLess(metrics["staircase_generated_tokens_total"], 400)


class Ends(unittest.TestCase):
    def test_all_texts_are_sent_before_all_ranks_end(self):
        with SharedServer() as server:
            streams = [iter(server.stream(**LONG)) for _ in range(3)]
            begun = [next(stream)["choices"][0]["text"] for stream in streams]
            server.process.send_signal(signal.SIGUSR1)
            texts = [text + text_of(stream) for text, stream in zip(begun, streams)]
            self.assertEqual(len(set(texts)), 1)
            self.assertGreater(len(texts[0]), 450)
            self.assertEqual(server.process.wait(20 * PATIENCE), 0, server.said())
            self.assertEqual(server.alive(), [])

    def test_a_rank_that_is_killed_ends_all(self):
        for rank, of, busy in ((0, 2, True), (1, 2, True), (1, 2, False), (2, 3, True), (0, 3, False)):
            with self.subTest(rank=rank, of=of, busy=busy), SharedServer(ranks=of, ends_well=False) as server:
                if busy:
                    stream = server.stream(**LONG)
                    self.addCleanup(stream.leave)
                    next(iter(stream))
                os.kill(server.ranks[rank], signal.SIGKILL)
                killed = time.monotonic()
                server.process.wait(20)
                self.assertLess(time.monotonic() - killed, 5)
                self.assertEqual(server.process.returncode, 128 + signal.SIGKILL)
                self.assertEqual(server.alive(), [])
                self.assertEqual(server.sentences(), [f"error: rank {rank} ended before the other ranks, so all ranks "
                                                      "end: it failed or was killed, perhaps because memory ran out"])

    def test_a_rank_that_is_stopped_ends_all_with_one_sentence(self):
        for rank, of, busy in ((1, 3, True), (0, 2, True), (0, 3, False)):
            with self.subTest(rank=rank, busy=busy), SharedServer(ranks=of, ends_well=False) as server:
                if busy:
                    stream = server.stream(**{**LONG, "n": 8})
                    self.addCleanup(stream.leave)
                    next(iter(stream))
                os.kill(server.ranks[rank], signal.SIGSTOP)
                stopped = time.monotonic()
                self.assertEqual(server.process.wait(20), 1)
                self.assertLess(time.monotonic() - stopped, 10 * PATIENCE)
                self.assertEqual(server.alive(), [])
                self.assertEqual(len(server.sentences()), 1, server.said())
                self.assertRegex(server.sentences()[0], "another rank has not answered for [0-9.]+ seconds: "
                                                        "it has ended, is stopped or cannot be reached")

    def test_the_time_without_requests_does_not_count_as_work(self):
        with SharedServer(ranks=3, ends_well=False) as server:
            server.texts("A fox", max_tokens=1, temperature=0)
            time.sleep(3)  # as work it would add 6 seconds, and rank 2 would end first, without a word
            os.kill(server.ranks[1], signal.SIGSTOP)
            stream = server.stream(**LONG)
            self.addCleanup(stream.leave)
            self.assertEqual(server.process.wait(20 * PATIENCE), 1)
            self.assertEqual(server.sentences(), ["error: another rank has not answered for 2.2 seconds: it has ended, "
                                                  "is stopped or cannot be reached"])

    def test_what_cannot_be_served_is_said_once(self):
        with alone() as server:
            port = server.port
            for option, value, status, message in (("--port", port, 1, str(port)),
                                                   ("--max-queue", -1, 2, "--max-queue"),
                                                   ("--context", 10000, 2, "--context is 10000")):
                with self.subTest(option):
                    done = subprocess.run(["mpirun", "-np", "2", str(PROGRAM), "--model", MODEL, option, str(value)],
                                          capture_output=True, text=True, timeout=30)
                    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
                    self.assertEqual((done.returncode, len(errors), done.stdout), (status, 1, ""), done.stderr)
                    self.assertIn(message, errors[0])

    def test_adapters_on_several_ranks_are_refused_with_one_sentence(self):
        done = subprocess.run(["mpirun", "-np", "2", str(CHATS), "--model", "tales-6m", "--adapter", "a=aesop"],
                              capture_output=True, text=True, timeout=30)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual([line for line in done.stderr.splitlines() if line.startswith("error:")],
                         ["error: adapters cannot be split between ranks; run the model on one rank"])

    def test_a_cache_file_on_several_ranks_is_refused_with_one_sentence(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "cache"
            done = subprocess.run(["mpirun", "-np", "2", str(CHATS), *arguments("--cache-file", file)],
                                  capture_output=True, text=True, timeout=30)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertEqual([line for line in done.stderr.splitlines() if line.startswith("error:")],
                             ["error: --cache-file needs the whole model; start the server on one rank"])
            self.assertFalse(file.exists())

    def test_ranks_that_wait_take_no_processor(self):
        def used(rank):
            fields = Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        with SharedServer(ranks=3) as server:
            server.texts(**REQUESTS[0])
            time.sleep(0.2)
            before = [used(rank) for rank in server.ranks]
            time.sleep(2)
            shares = [(used(rank) - was) / 2 for rank, was in zip(server.ranks, before)]
            self.assertLess(max(shares), 0.15, shares)
            begun = time.monotonic()
            server.texts("A fox", max_tokens=1, temperature=0)
            self.assertLess(time.monotonic() - begun, 0.5 * PATIENCE)


@unittest.skipUnless(test_balancer.HAPROXY, "haproxy is not installed; tools/setup --haproxy installs it")
class Replicas(test_balancer.Balancer):
    """Two replicas of two ranks each."""
    KIND = SharedServer
    test_no_request_is_lost_when_a_server_goes = test_without_any_server_the_balancer_says_so = None

    def test_no_request_is_lost_when_a_rank_is_killed(self):
        short = [{**LONG, "prompt": prompt, "max_tokens": 12} for prompt in ("A fox", "A Lion")]
        requests = short * 30
        wanted = [self.balancer.texts(**request) for request in requests[:2]]
        going, stays = self.servers
        going.ends_well = False
        with concurrent.futures.ThreadPoolExecutor(6) as clients:
            texts = [clients.submit(self.balancer.texts, **request) for request in requests]
            self.assertTrue(wait_until(lambda: sum(text.done() for text in texts) > 10))
            self.assertTrue(wait_until(lambda: sum(going.load()) > 0))
            os.kill(going.ranks[1], signal.SIGKILL)
            self.assertEqual([text.result() for text in texts], wanted * 30)
        self.assertNotEqual(going.process.wait(20), 0)
        self.assertEqual(stays.alive(), stays.ranks)


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        print("mpirun is missing")
        raise SystemExit(77)
    unittest.main()
