"""What hostile, old and strange clients send, byte for byte, and what proxies in front of the server rely on."""

import json
import re
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from support import PATIENCE, PROGRAM, ROOT, Client, Server, memory, wait_until

LONG = {"prompt": "The", "max_tokens": 400, "ignore_eos": True, "n": 10}


def post(body, *lines, version="1.1", path="/v1/completions"):
    """The bytes of a request."""
    body = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    header = [f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json",
              f"Content-Length: {len(body)}", *lines]
    return "\r\n".join(header).encode() + b"\r\n\r\n" + body


class RawHttp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--max-batch-size", 4))

    def say(self, *parts, pause=0.0, timeout=20):
        """All that comes back, until the server closes the connection or is silent for half a second; for two with a
        sanitizer."""
        with self.server.socket(timeout) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # each part in a packet of its own
            for part in parts:
                client.sendall(part)
                time.sleep(pause)
            said = b""
            client.settimeout(min(0.5 * PATIENCE, 2))
            try:
                while piece := client.recv(65536):
                    said += piece
                return said, True
            except TimeoutError:
                return said, False

    def statuses(self, *parts, **keys):
        said, closed = self.say(*parts, **keys)
        return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+) ", said)], closed

    # ── Where a request ends ──

    def test_a_body_of_unknown_end_is_refused_and_nothing_behind_it_is_read(self):
        smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for coding in (b"cow", b"gzip", b"chunked, identity", b"identity"):
            with self.subTest(coding):
                self.assertEqual(self.statuses(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " +
                                               coding + b"\r\n\r\n" + smuggled), ([400], True))
        self.assertEqual(self.statuses(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked"
                                       b"\r\n\r\n0\r\n\r\n" + smuggled), ([501], True))
        for fields in (b"Transfer-Encoding: chunked\r\nConnection: keep-alive", b"Transfer-Encoding: cow"):
            self.assertEqual(self.statuses(b"POST / HTTP/1.0\r\n" + fields + b"\r\n\r\n" + smuggled), ([400], True))
        self.assertEqual(self.statuses(b"GET / HTTP/1.1\r\n\r\n" + smuggled), ([400], True))
        self.assertEqual(self.statuses(b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n" + smuggled), ([400], True))

    def test_empty_lines_between_requests_are_skipped(self):
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self.assertEqual(self.statuses(b"\r\n" + get), ([200], False))
        body = {"prompt": "A", "max_tokens": 1}
        self.assertEqual(self.statuses(post(body) + b"\r\n" + get + b"\r\n"), ([200, 200], False))
        self.assertEqual(self.statuses(post(body), b"\r\n", get, pause=0.2), ([200, 200], False))

    def test_a_request_may_come_byte_by_byte_with_another_right_after_it(self):
        body = json.dumps({"prompt": "é", "max_tokens": 1}, ensure_ascii=False).encode()
        chunked = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                   b"Transfer-Encoding: chunked\r\n\r\n" + b"%x;a=b\r\n" % len(body) + body + b"\r\n0\r\n\r\n")
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for request in (post(body), chunked):
            whole = request + get
            self.assertEqual(self.statuses(*(whole[i:i + 1] for i in range(len(whole))), pause=0.001), ([200, 200], False))

    def test_a_refused_request_whose_body_is_there_costs_no_connection(self):
        get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        self.assertEqual(self.statuses(post("{}", path="/nowhere") + get), ([404, 200], False))

    # ── What a client of HTTP/1.1, and what an older one expects ──

    def test_continue_is_for_http_1_1_and_for_bodies_that_are_wanted(self):
        body = {"prompt": "A", "max_tokens": 1}
        whole = post(body, "Expect: 100-continue")
        header, rest = whole[:whole.index(b"\r\n\r\n") + 4], whole[whole.index(b"\r\n\r\n") + 4:]
        self.assertEqual(self.statuses(header, rest, pause=0.2), ([100, 200], False))
        self.assertEqual(self.statuses(whole), ([200], False))
        self.assertEqual(self.statuses(header.replace(b"HTTP/1.1", b"HTTP/1.0"), rest, pause=0.2), ([200], True))
        self.assertEqual(self.statuses(header.replace(b"/v1/completions", b"/nowhere"), pause=0.2), ([404], True))

    def test_a_whole_address_is_a_target(self):
        for target in (b"http://localhost/health", b"HTTP://127.0.0.1:1/health?x"):
            self.assertEqual(self.statuses(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n"), ([200], False))

    def test_each_answer_has_a_date_and_an_id(self):
        for said in (self.say(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"), self.say(b"x\r\n\r\n"),
                     self.say(post({"prompt": "A", "max_tokens": 1, "stream": True}))):
            self.assertRegex(said[0].decode(), r"\r\nDate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n")
            self.assertRegex(said[0].decode(), r"\r\nX-Request-Id: req-\S{10,}\r\n")
        said = self.say(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-1\r\n\r\n")[0]
        self.assertIn(b"\r\nX-Request-Id: mine-1\r\n", said)
        for strange in (b"x" * 200, b"two words", b""):
            said = self.say(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: " + strange + b"\r\n\r\n")[0]
            self.assertRegex(said.decode(), r"\r\nX-Request-Id: req-\S+\r\n")

    def test_a_model_by_its_name(self):
        status, _, model = self.server.ask("GET", "/v1/models/tales-6m")
        self.assertEqual((status, model["id"], model["object"]), (200, "tales-6m", "model"))
        status, _, error = self.server.ask("GET", "/v1/models/gpt-4")
        self.assertEqual((status, error["error"]["code"]), (404, "model_not_found"))
        self.assertEqual(self.server.ask("POST", "/v1/models/tales-6m", "{}")[0], 405)

    def test_fields_may_be_written_in_any_way(self):
        for kind in ("application/json\t; charset=utf-8", "Application/JSON;charset=utf-8", " application/json "):
            self.assertEqual(self.server.post({"prompt": "A", "max_tokens": 1}, Content_Type=kind)[0], 200, kind)

    def test_a_coded_body_is_refused_with_a_sentence(self):
        status, header, error = self.server.post(b"\x1f\x8b\x08\x00", Content_Encoding="gzip")
        self.assertEqual((status, header["Accept-Encoding"]), (415, "identity"))
        self.assertIn('must not be encoded, but it has Content-Encoding: "gzip"', error["error"]["message"])
        self.assertEqual(self.server.post({"prompt": "A", "max_tokens": 1}, Content_Encoding="identity")[0], 200)

    def test_a_body_may_begin_with_a_byte_order_mark(self):
        self.assertEqual(self.server.post(b'\xef\xbb\xbf{"prompt": "A", "max_tokens": 1}')[0], 200)

    def test_head_sends_no_body(self):
        said, closed = self.say(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self.assertEqual(said.count(b"Content-Length: 15\r\n"), 2)
        self.assertEqual(said.count(b'{"status"'), 1)
        self.assertRegex(said, rb"(?s)^HTTP/1\.1 200.*?\r\n\r\nHTTP/1\.1 200")

    def test_a_stream_for_http_1_0_ends_though_its_client_would_stay(self):
        said, closed = self.say(post({"prompt": "A", "stream": True, "max_tokens": 3}, "Connection: keep-alive", version="1.0"))
        self.assertTrue(closed)
        self.assertTrue(said.endswith(b"data: [DONE]\n\n"), said)
        self.assertNotIn(b"chunked", said)

    # ── Clients that leave ──

    def test_a_client_that_leaves_after_a_late_byte_has_left(self):
        for late in (b"\n", b"\r\n", b"x" * 1000, post(LONG), b"x" * 200000):
            with self.subTest(late[:10]), self.server.socket() as client:
                client.sendall(post(LONG))
                self.assertTrue(wait_until(lambda: sum(self.server.load()) > 0))
                time.sleep(0.1)
                client.sendall(late)
                time.sleep(0.1)
                self.assertGreater(sum(self.server.load()), 0)
                client.close()
                self.assertTrue(wait_until(lambda: self.server.load() == (0, 0), 3))

    def test_a_client_that_leaves_while_its_body_is_parsed_has_left(self):
        def body(max_tokens):  # takes long: a known key is near each of many others
            return post({"prompt": [[5] * 100] * 128, "max_tokens": max_tokens, "ignore_eos": True, "user": "x" * 10**6,
                         "other": [[[]]] * 50_000, **{f"another_{i:04}": 0 for i in range(1900)}})

        def parse(server, request, seconds=None):
            """Leaves so long after the parser has begun, or waits for the answer."""
            with server.socket() as client:
                client.sendall(request[:-1])
                time.sleep(0.1)
                start = time.monotonic()
                client.sendall(request[-1:])
                if seconds is not None:
                    return time.sleep(seconds)
                self.assertIn(b"maximum context length", client.recv(65536))
                return time.monotonic() - start

        with Server("--max-batch-size", 1) as server:
            whole = min(parse(server, body(413)) for _ in range(3))
            for part in (0, 0.2, 0.4, 0.6):
                with self.subTest(part):
                    parse(server, body(400), part * whole)
                    self.assertEqual(server.post({"prompt": ""})[0], 400)  # the next one in the parser's queue
                    self.assertTrue(wait_until(lambda: server.load() == (0, 0), 2), "its texts would take many seconds")

    def test_what_a_client_leaves_is_counted_by_texts(self):
        with Server("--max-batch-size", 2) as server:
            with server.socket() as client:
                client.sendall(post({**LONG, "max_tokens": 60, "n": 8}))
                self.assertTrue(wait_until(lambda: 0 < server.metrics()["staircase_texts"] < 8))
            self.assertTrue(wait_until(lambda: server.load() == (0, 0)))
            self.assertEqual(server.metrics()["staircase_texts"], 0)

    # ── Streams behind a proxy ──

    def test_a_stream_begins_before_its_first_token_and_is_not_to_be_buffered(self):
        with self.server.socket() as first, self.server.socket() as second:
            first.sendall(post({**LONG, "n": 40}))
            self.assertTrue(wait_until(lambda: sum(self.server.load()) > 30))
            second.sendall(post({"prompt": "A", "stream": True}))
            header = second.recv(65536)
            self.assertTrue(header.startswith(b"HTTP/1.1 200 "), header)
            self.assertIn(b"\r\nX-Accel-Buffering: no\r\n", header)
            self.assertGreater(sum(self.server.load()), 4, "there is no place for it yet")
            self.assertNotIn(b"data:", header)

    # ── Counting ──

    def test_each_answer_is_counted_once_with_its_status(self):
        with Server() as server:
            for bytes_, status in ((b"x\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nX: " + b"y" * 20000, 431),
                                   (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n", 413),
                                   (post("{"), 400), (post({"prompt": "A", "max_tokens": 1}), 200)):
                with server.socket() as client:
                    client.sendall(bytes_)
                    self.assertTrue(client.recv(65536).startswith(f"HTTP/1.1 {status} ".encode()), status)
            with server.socket() as slow:
                slow.sendall(b"GET / HT")
                self.assertTrue(slow.recv(65536).startswith(b"HTTP/1.1 408 "))
            with server.socket() as client:
                client.sendall(post(LONG))
                self.assertTrue(wait_until(lambda: sum(server.load()) > 0))
            self.assertTrue(wait_until(lambda: server.load() == (0, 0)))
            counts = {tuple(re.findall(r'"([^"]*)"', name)): value for name, value in server.metrics().items()
                      if name.startswith("staircase_requests_total")}
            for key in [key for key in counts if key[0] == "/metrics"]:
                del counts[key]
            self.assertEqual(counts, {("other", "400"): 1, ("/", "431"): 1, ("/v1/completions", "413"): 1, ("other", "408"): 1,
                                      ("/v1/completions", "400"): 1, ("/v1/completions", "200"): 1, ("/v1/completions", "499"): 1})
            self.assertEqual(server.metrics()["staircase_requests_left_total"], 1)


class Hostile(unittest.TestCase):
    """Many of them at once: memory stays, and others wait for nothing."""

    def attack(self, server, begin, again, count=8, seconds=3.0):
        """What the memory grows by, and how long /health takes at worst, while clients send without an end."""
        before, worst = memory(server), 0.0
        end = time.monotonic() + seconds

        def send():
            while time.monotonic() < end:
                with server.socket() as client:
                    try:
                        client.sendall(begin)
                        while time.monotonic() < end:
                            client.sendall(again)
                    except OSError:
                        pass

        clients = [threading.Thread(target=send) for _ in range(count)]
        for client in clients:
            client.start()
        most = 0
        while time.monotonic() < end:
            start = time.monotonic()
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            worst = max(worst, time.monotonic() - start)
            most = max(most, memory(server) - before)
            time.sleep(0.02)
        for client in clients:
            client.join()
        return most, worst

    def test_what_comes_before_a_request_is_taken_is_bounded(self):
        chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" \
                  b"Transfer-Encoding: chunked\r\n\r\n"
        with Server("--max-batch-size", 1) as server:  # more rows would take more memory for their texts
            for name, begin, again in (("trailers", chunked + b"0\r\n", b"X: y\r\n" * 2000),
                                       ("an extension", chunked + b"1;", b"x" * 10000),
                                       ("extensions", chunked, (b"1;" + b"x" * 1000 + b"\r\ny\r\n") * 10),
                                       ("a header", b"GET / HTTP/1.1\r\n", b"X: y\r\n" * 2000),
                                       ("empty lines", b"", b"\r\n" * 10000),
                                       ("bytes ahead of the next request", post({**LONG, "n": 1}), b"x" * 10000)):
                with self.subTest(name):
                    grown, _ = self.attack(server, begin, again)
                    self.assertLess(grown, 8e6)

    def test_a_body_is_read_for_those_alone_who_have_the_key(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("key\n")
            keys.flush()
            with Server("--api-key-file", keys.name) as server:
                header = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                          b"Content-Length: 2000000\r\n\r\n")
                before, clients = memory(server), []
                for _ in range(50):
                    client = server.socket()
                    self.addCleanup(client.close)
                    clients.append(client)
                    client.sendall(header)
                    self.assertTrue(client.recv(65536).startswith(b"HTTP/1.1 401 "))
                    try:
                        client.sendall(b"x" * 1_900_000)
                    except OSError:
                        pass
                self.assertLess(memory(server) - before, 10e6)

    def test_others_do_not_wait_while_a_large_body_is_read_or_a_large_answer_is_made(self):
        with Server("--max-queue", 1000) as server:
            keys = json.dumps({"prompt": "A", "max_tokens": 1, **{f"key{i:06}": 0 for i in range(120_000)}})
            ids = json.dumps({"prompt": [[5] * 400] * 128, "max_tokens": 500})
            texts = json.dumps({"prompt": ["word " * 3000] * 128, "max_tokens": 500})
            large = json.dumps({"prompt": [[5] * 500], "n": 128, "max_tokens": 0, "logprobs": 20, "echo": True})
            # The answer to the last one has 24 MB. Two busy cores measured 6 to 13 ms, and 60 to 90 ms where its pieces
            # were joined before they were sent.
            for name, body in (("keys", keys), ("token ids", ids), ("texts", texts), ("log-probabilities", large)):
                with self.subTest(name):
                    done = threading.Event()

                    def send():
                        while not done.is_set():
                            with server.socket() as client:  # without JSON: that would stop all threads of this process
                                client.sendall(post(body, "Connection: close"))
                                while client.recv(1 << 20) and not done.is_set():
                                    pass

                    clients = [threading.Thread(target=send) for _ in range(2)]
                    for client in clients:
                        client.start()
                    times = []
                    for _ in range(100):
                        start = time.monotonic()
                        self.assertEqual(server.ask("GET", "/health")[0], 200)
                        times.append(time.monotonic() - start)
                        time.sleep(0.02)
                    done.set()
                    for client in clients:
                        client.join()
                    self.assertLess(sorted(times)[90], 0.05 * PATIENCE, sorted(times)[-10:])


class Names(unittest.TestCase):
    def get(self, server, host, target=b"/v1/models"):
        with server.socket() as client:
            client.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
            said = b"".join(iter(lambda: client.recv(65536), b""))
        return int(said[9:12]), said

    def test_on_this_machine_alone_other_names_are_refused(self):
        with Server("--allowed-host", "models.example", "--allowed-host", "Other.example:80") as server:
            for host in (b"evil.example", b"evil.example:80", b"127.0.0.1.evil.example", b"localhost.evil.example", b"1e0",
                         b"evillocalhost"):
                status, said = self.get(server, host)
                self.assertEqual(status, 403, host)
                self.assertIn(b'"code":"host_not_allowed"', said)
            self.assertEqual(self.get(server, b"localhost", b"http://evil.example/")[0], 403)
            for host in (b"localhost", b"LOCALHOST:8080", b"a.localhost", b"127.0.0.1", b"[::1]:1", b"192.168.1.2", b"",
                         b"models.example", b"MODELS.example:80", b"other.example:9"):
                self.assertEqual(self.get(server, host)[0], 200, host)

    def test_a_server_for_others_has_any_name_unless_some_are_given(self):
        for options, wanted in ((("--host", "0.0.0.0"), 200), (("--host", "0.0.0.0", "--allowed-host", "a.example"), 403)):
            server = Server(*options)
            server.listens = r"http://0\.0\.0\.0"
            with server:
                self.assertEqual(self.get(server, b"evil.example")[0], wanted)

    def test_localhost_is_each_of_its_addresses(self):
        found = {entry[4][0] for entry in socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)}
        server = Server("--host", "localhost")
        server.listens = r"http://(?:127\.0\.0\.1|\[::1\])"
        with server:
            for address in found:
                with socket.create_connection((address, server.port), 5) as client:
                    client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    self.assertTrue(client.recv(65536).startswith(b"HTTP/1.1 200 "), address)

    def test_two_servers_give_no_id_twice(self):
        with Server() as one, Server() as other:
            ids = [server.complete("A", max_tokens=1)["id"] for server in (one, other) for _ in range(3)]
        self.assertEqual(len(set(ids)), 6, ids)

    def test_a_key_is_known_however_it_is_written(self):
        with tempfile.NamedTemporaryFile("wb", suffix=".keys") as keys:
            keys.write(b"\xef\xbb\xbffirst key\r\n\r\nsecond\r\n")
            keys.flush()
            with Server("--api-key-file", keys.name) as server:
                for given in ("Bearer first key", "bearer second", "BEARER   second", "Bearer\tsecond", "Bearer second  "):
                    self.assertEqual(server.ask("GET", "/v1/models", Authorization=given)[0], 200, given)
                for given in ("Bearersecond", "Bearer", "Bearer first", "Bearer  ", "Bearer \ufefffirst key".encode()):
                    self.assertEqual(server.ask("GET", "/v1/models", Authorization=given)[0], 401, given)


if __name__ == "__main__":
    unittest.main()
