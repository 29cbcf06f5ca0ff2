"""Two servers behind HAProxy with the configuration of docs/: one goes under load, and no request is lost."""

import concurrent.futures
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import PATIENCE, ROOT, ChatServer, Client, Server, wait_until

HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
LENGTHS = (5, 20, 60)
PROMPTS = ["Once upon a time", "The fox said to the crow:", "A Lion"]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@unittest.skipUnless(HAPROXY, "haproxy is not installed; tools/setup --haproxy installs it")
class Balancer(unittest.TestCase):
    KIND = Server

    def setUp(self):
        self.servers = [self.enterContext(self.KIND("--max-batch-size", 4)) for _ in range(2)]
        self.balancer = Client(free_port())
        text = (ROOT / "docs/haproxy.cfg").read_text()
        for written, port in [(8080, self.balancer.port), *zip((8081, 8082), (one.port for one in self.servers))]:
            self.assertEqual(text.count(f":{written}\n"), 1)
            text = text.replace(f":{written}\n", f":{port}\n")
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "haproxy.cfg").write_text(text)
        process = subprocess.Popen([HAPROXY, "-f", folder / "haproxy.cfg", "-db"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=(folder / "said").open("w"))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(self.answers), (folder / "said").read_text())

    def answers(self):
        try:
            return self.balancer.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def ask(self, number):
        """The text that a request gets, as a whole or as a stream."""
        keys = {"prompt": PROMPTS[number % 3], "max_tokens": LENGTHS[number // 3 % 3], "temperature": 0, "ignore_eos": True}
        if number % 2:
            return self.balancer.texts(**keys)[0]
        return "".join(event["choices"][0]["text"] for event in self.balancer.stream(**keys))

    def test_no_request_is_lost_when_a_server_goes(self):
        numbers = list(range(18)) * 12
        random.Random(1).shuffle(numbers)
        wanted = [self.ask(number) for number in range(18)]
        going, stays = self.servers
        with concurrent.futures.ThreadPoolExecutor(12) as clients:
            texts = [clients.submit(self.ask, number) for number in numbers]
            self.assertTrue(wait_until(lambda: sum(text.done() for text in texts) > 40))
            both = [server.metrics()["staircase_generated_tokens_total"] for server in self.servers]
            self.assertGreater(sum(going.load()), 0)
            going.process.send_signal(signal.SIGTERM)
            self.assertEqual([text.result() for text in texts], [wanted[number] for number in numbers])
        self.assertTrue(all(both), "both have had work")
        self.assertEqual(going.process.wait(20 * PATIENCE), 0)
        self.assertGreater(stays.metrics()["staircase_generated_tokens_total"], both[1])

    def test_without_any_server_the_balancer_says_so(self):
        for server in self.servers:
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(20 * PATIENCE)
        self.assertEqual(self.balancer.ask("GET", "/v1/models")[0], 503)


class ChatBalancer(Balancer):
    """The same for conversations."""
    KIND = ChatServer

    def ask(self, number):
        messages = [{"role": "user", "content": PROMPTS[number % 3]}]
        body = {"messages": messages, "max_tokens": LENGTHS[number // 3 % 3], "temperature": 0, "ignore_eos": True}
        if number % 2:
            status, _, answer = self.balancer.ask("POST", "/v1/chat/completions", json.dumps(body), Content_Type="application/json")
            self.assertEqual(status, 200, answer)
            return answer["choices"][0]["message"]["content"]
        status, _, events = self.balancer.ask("POST", "/v1/chat/completions", json.dumps({**body, "stream": True}),
                                              Content_Type="application/json")
        lines = [line[len("data: "):] for line in events.splitlines() if line.startswith("data: ")]
        self.assertEqual((status, lines[-1]), (200, "[DONE]"))
        return "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines[:-1])


if __name__ == "__main__":
    unittest.main()
