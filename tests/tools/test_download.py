"""tools/download against a small hub on this machine, which can misbehave in every way that it must survive."""

import contextlib
import hashlib
import http.server
import io
import os
import tempfile
import threading
import unittest
import unittest.mock
from pathlib import Path

from support import Limited, load

WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
SMALL = {"config.json": b'{"n_layer": 2}', "vocab.json": b'{"a": 0}', "merges.txt": b"#version: 0.2\n"}


def blob_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.ThreadingHTTPServer):
    """Small files are answered at once; the weights redirect to /storage, as the hub does with large files."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.weights = WEIGHTS
        self.requests = []  # (method, path, Range, Authorization)
        self.etag = None  # instead of the true SHA-256
        self.size = None  # instead of the true size
        self.cut_after = []  # for each coming GET of the weights: bytes until the connection breaks, or None
        self.on_cut = lambda: None
        self.ranges = True
        self.wrong_range = False
        self.status = None  # every answer
        self.busy = 0  # so many answers are 503
        self.renamed = None  # where the repository is now: a path, or another server's address
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    def handle_error(self, *_):
        pass  # a cut connection is what the test wants


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, content=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def do_GET(self):
        hub = self.server
        hub.requests.append((self.command, self.path, self.headers["Range"], self.headers["Authorization"]))
        name = self.path.split("/")[-1]
        if hub.busy:
            hub.busy -= 1
            return self.answer(503)
        if hub.status:
            return self.answer(hub.status)
        if hub.renamed and not self.path.startswith(("/new-owner/", "/storage/")):
            return self.answer(307, Location=f"{hub.renamed}/resolve/main/{name}")
        if name in SMALL:
            return self.answer(200, SMALL[name], ETag=f'"{blob_hash(SMALL[name])}"')
        if self.path.startswith("/storage/"):
            return self.storage()
        return self.answer(302, Location=f"{hub.url}/storage/{name}",
                           x_linked_etag=f'"{hub.etag or hashlib.sha256(hub.weights).hexdigest()}"',
                           x_linked_size=str(hub.size or len(hub.weights)))

    do_HEAD = do_GET

    def storage(self):
        hub = self.server
        content, start = hub.weights, 0
        wanted = self.headers["Range"]
        if wanted and hub.ranges:
            start = int(wanted[len("bytes="):-1])
            if start >= len(content):
                return self.answer(416, Content_Range=f"bytes */{len(content)}")
            self.send_response(206)
            first = 0 if hub.wrong_range else start
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = hub.cut_after.pop(0) if hub.cut_after else None
        if cut is None:
            self.wfile.write(content[start:])
        else:
            self.wfile.write(content[start:start + cut])
            self.wfile.flush()
            hub.on_cut()
            self.close_connection = True


class Download(Limited):
    def setUp(self):
        self.hub = Hub()
        self.addCleanup(self.hub.server_close)
        self.addCleanup(self.hub.shutdown)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.weights = self.folder / "model.safetensors"
        self.part = self.folder / "model.safetensors.part"

    def download(self, name="gpt2", endpoint=None, token=""):
        """(exit status, what it said)"""
        environment = {"HF_ENDPOINT": endpoint or self.hub.url, "HF_TOKEN": token, "no_proxy": "127.0.0.1"}
        with unittest.mock.patch.dict(os.environ, environment), contextlib.redirect_stderr(io.StringIO()) as said:
            tool = load("download")
            tool.BACK_OFF, tool.TIMEOUT = 0.001, 5.0
            status = tool.main([name, "--to", str(self.folder)])
        return status, said.getvalue()

    def ranges(self):
        return [wanted for method, path, wanted, _ in self.hub.requests if method == "GET" and path.startswith("/storage/")]

    def files(self):
        return sorted(path.name for path in self.folder.iterdir())

    def assert_complete(self, outcome):
        self.assertEqual(outcome[0], 0, outcome[1])
        self.assertEqual(self.weights.read_bytes(), self.hub.weights)
        self.assertEqual(self.files(), sorted([*SMALL, "model.safetensors"]))

    def assert_refused(self, outcome, *words):
        """Exit status 1, one sentence, and nothing under the final name."""
        self.assertEqual(outcome[0], 1, outcome[1])
        for word in words:
            self.assertIn(word, outcome[1])
        self.assertNotIn("Traceback", outcome[1])
        self.assertFalse(self.weights.exists())

    def test_all_files_arrive(self):
        self.assert_complete(self.download())
        self.assertEqual((self.folder / "vocab.json").read_bytes(), SMALL["vocab.json"])

    def test_complete_files_are_not_fetched_again(self):
        self.download()
        self.hub.requests.clear()
        status, said = self.download()
        self.assertEqual(status, 0)
        self.assertEqual(said.count("already there"), 4)
        self.assertEqual({method for method, *_ in self.hub.requests}, {"HEAD"})

    def test_a_damaged_file_is_fetched_again(self):
        self.weights.write_bytes(b"x" + WEIGHTS[1:])
        self.assert_complete(self.download())

    def test_a_cut_connection_resumes_with_the_rest_only(self):
        self.hub.cut_after = [300_000, 500_000]
        self.assert_complete(self.download())
        self.assertEqual(self.ranges(), [None, "bytes=300000-", "bytes=800000-"])

    def test_a_connection_that_is_cut_more_often_than_it_may_fail_resumes_while_it_brings_something(self):
        self.hub.cut_after = [100_000] * 7
        self.assert_complete(self.download())
        self.assertEqual(self.ranges(), [None, *(f"bytes={100_000 * cuts}-" for cuts in range(1, 8))])

    def test_it_gives_up_and_a_second_run_resumes(self):
        self.hub.cut_after = [300_000, 0, 0, 0, 0, 0]
        self.assert_refused(self.download(), "again", "0.3 MB")
        self.assertEqual(self.part.stat().st_size, 300_000)
        self.hub.requests.clear()
        self.hub.cut_after = []
        self.assert_complete(self.download())
        self.assertEqual(self.ranges(), ["bytes=300000-"])

    def test_a_server_without_ranges_starts_over(self):
        self.hub.cut_after = [300_000]
        self.hub.ranges = False
        self.assert_complete(self.download())

    def test_a_wrong_range_starts_over(self):
        self.hub.cut_after = [300_000]
        self.hub.wrong_range = True
        self.assert_complete(self.download())
        self.assertEqual(self.ranges(), [None, "bytes=300000-", None])

    def test_another_version_starts_over(self):
        def publish():
            self.hub.weights = WEIGHTS[::-1]
        self.hub.cut_after, self.hub.on_cut = [300_000], publish
        self.assert_complete(self.download())
        self.assertEqual(self.ranges(), [None, None])

    def test_another_version_between_runs_starts_over(self):
        self.hub.cut_after = [300_000, 0, 0, 0, 0, 0]
        self.download()
        self.hub.weights, self.hub.cut_after = WEIGHTS[::-1], []
        self.hub.requests.clear()
        self.assert_complete(self.download())
        self.assertEqual(self.ranges(), [None])

    def test_an_oversized_part_starts_over(self):
        self.part.write_bytes(WEIGHTS + b"more")
        Path(f"{self.part}.etag").write_text(hashlib.sha256(WEIGHTS).hexdigest())
        self.assert_complete(self.download())

    def test_a_finished_part_is_only_checked(self):
        self.part.write_bytes(WEIGHTS)
        Path(f"{self.part}.etag").write_text(hashlib.sha256(WEIGHTS).hexdigest())
        self.assert_complete(self.download())
        self.assertEqual(self.ranges(), [])

    def test_a_wrong_hash_is_removed(self):
        self.hub.etag = "0" * 64
        self.assert_refused(self.download(), "hash", "0" * 64)
        self.assertFalse(self.part.exists())

    def test_a_wrong_size_is_refused(self):
        self.hub.size = len(WEIGHTS) + 1
        self.assert_refused(self.download(), str(len(WEIGHTS)), str(len(WEIGHTS) + 1))

    def test_a_missing_model(self):
        self.hub.status = 404
        self.assert_refused(self.download("some/thing"), "check the name", "/some/thing/resolve/main/config.json")
        self.assertEqual(self.files(), [])

    def test_a_private_model(self):
        self.hub.status = 401
        self.assert_refused(self.download(), "HF_TOKEN")

    def test_a_busy_server_is_asked_again(self):
        self.hub.busy = 3
        self.assert_complete(self.download())

    def test_a_renamed_repository_is_followed(self):
        self.hub.renamed = "/new-owner/gpt2"
        self.assert_complete(self.download())

    def test_the_token_stays_with_the_hub(self):
        other = Hub()
        self.addCleanup(other.server_close)
        self.addCleanup(other.shutdown)
        endpoint, self.hub.url = self.hub.url, other.url  # the storage is elsewhere
        self.assert_complete(self.download(endpoint=endpoint, token="secret"))
        self.hub.renamed = other.url + "/gpt2"  # the whole repository is elsewhere
        self.assert_complete(self.download(endpoint=endpoint, token="secret"))
        self.assertEqual({token for *_, token in self.hub.requests}, {"Bearer secret"})
        self.assertEqual({token for *_, token in other.requests}, {None})

    def test_offline(self):
        self.assert_refused(self.download(endpoint="http://127.0.0.1:9"), "no answer from 127.0.0.1:9")

    def test_a_full_disk(self):
        with unittest.mock.patch("shutil.disk_usage", return_value=unittest.mock.Mock(free=1000)):
            self.assert_refused(self.download(), "room for 0 MB", "needs 1 MB")

    def test_control_c_keeps_the_part(self):
        with unittest.mock.patch.dict(os.environ, {"HF_ENDPOINT": self.hub.url, "no_proxy": "127.0.0.1"}), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            tool = load("download")
            with unittest.mock.patch.object(tool.PlainProgress, "update", side_effect=KeyboardInterrupt):
                self.assertEqual(tool.main(["gpt2", "--to", str(self.folder)]), 130)
        self.assertIn("run the same command again", said.getvalue())
        self.assertEqual(self.files(), ["config.json.part", "config.json.part.etag"])

    def test_an_unknown_name(self):
        with self.assertRaises(SystemExit) as exit, contextlib.redirect_stderr(io.StringIO()) as said:
            load("download").main(["gpt3"])
        self.assertEqual(exit.exception.code, 2)
        self.assertIn("'gpt3'", said.getvalue())


if __name__ == "__main__":
    unittest.main()
