"""Two servers behind nginx with the configuration of docs/: streams arrive piece by piece, and a client that leaves
is gone."""

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

from support import PATIENCE, ROOT, Client, Server, wait_until
from test_balancer import free_port

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


@unittest.skipUnless(NGINX, "nginx is not installed; Debian has it in the package nginx-light")
class Nginx(unittest.TestCase):
    def setUp(self):
        self.servers = [self.enterContext(Server("--max-batch-size", 32, "--allowed-host", "models.example")) for _ in range(2)]
        self.proxy = self.start((ROOT / "docs/nginx.conf").read_text())

    def start(self, text):
        """nginx with this configuration, in front of the two servers."""
        proxy = Client(free_port())
        for written, port in [(8080, proxy.port), *zip((8081, 8082), (one.port for one in self.servers))]:
            self.assertEqual(text.count(f":{written};\n"), 1)
            text = text.replace(f":{written};\n", f":{port};\n")
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        paths = "".join(f"  {name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (folder / "nginx.conf").write_text(text.replace("http {\n", f"http {{\n  access_log off;\n{paths}", 1))
        process = subprocess.Popen([NGINX, "-p", folder, "-e", folder / "said", "-c", folder / "nginx.conf", "-g",
                                    f"daemon off; master_process off; pid {folder}/pid;"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.enterContext((folder / "errors").open("w")))
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(wait_until(lambda: self.answers(proxy)), (folder / "errors").read_text())
        return proxy

    @staticmethod
    def answers(proxy):
        try:
            return proxy.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def test_a_stream_comes_piece_by_piece(self):
        text = (ROOT / "docs/nginx.conf").read_text()
        # As nginx is delivered, it asks with HTTP/1.0, where it collects 4 KiB of an answer, some twenty events.
        delivered = self.start(re.sub(r".*proxy_(http_version 1\.1|set_header Connection).*\n", "", text))
        for proxy in (self.proxy, delivered):
            # Among others, each token takes some milliseconds, in which this process has read it on a busy machine,
            # too.
            others = [server.stream("The", max_tokens=400, ignore_eos=True, n=31) for server in self.servers]
            self.assertTrue(wait_until(lambda: all(server.load() == (0, 31) for server in self.servers)))
            times = []
            for _ in proxy.stream("The", max_tokens=60, ignore_eos=True, temperature=0):
                times.append(time.monotonic())
            for stream in others:
                stream.leave()
            self.assertTrue(wait_until(lambda: all(server.load() == (0, 0) for server in self.servers)))
            pauses = [later - earlier for earlier, later in zip(times, times[1:])]
            self.assertLess(sum(pause < 3e-4 for pause in pauses), len(pauses) / 2)

    def test_a_stream_begins_while_its_request_waits(self):
        streams = [self.proxy.stream("The", max_tokens=400, ignore_eos=True, n=64) for _ in range(2)]
        self.assertTrue(wait_until(lambda: all(sum(server.load()) > 50 for server in self.servers)))
        waits = self.proxy.stream("A", max_tokens=5)
        response = waits.connection.getresponse()
        self.assertEqual(response.status, 200)
        self.assertGreater(min(server.load()[0] for server in self.servers), 0)
        for stream in (*streams, waits):
            stream.leave()
        self.assertTrue(wait_until(lambda: all(server.load() == (0, 0) for server in self.servers), 5))

    def test_texts_and_names(self):
        texts = []
        def ask():
            texts.append(self.proxy.texts("Once upon a time", temperature=0)[0])
        clients = [threading.Thread(target=ask) for _ in range(8)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        self.assertEqual(texts, self.servers[0].texts("Once upon a time", temperature=0) * 8)
        for name, status in (("models.example", 200), ("evil.example", 403)):
            self.assertEqual(self.proxy.ask("GET", "/v1/models", Host=name)[0], status)


if __name__ == "__main__":
    unittest.main()
