"""Random requests from clients that are broken or hostile. Each one depends only on the seed and its number.

    tests/server/test_hostile.py                                 # 800 of them, for the program in build/
    tests/server/test_hostile.py --requests 10000 --seed 7       # more, and other ones
    tests/server/test_hostile.py --only 1234                     # one of them again, with what it sends
    tests/server/test_hostile.py --program DIR/steps/66-http-server   # another build, such as one with sanitizers
    tests/server/test_hostile.py --port 8080                     # a server that runs already; its memory is not watched

Whatever comes back must be an answer, and no 500. The memory must not grow, and after all of them the server must give
the same text as before and end well."""

import argparse
import concurrent.futures
import json
import random
import re
import socket
import struct
import sys
import time
import unittest
from pathlib import Path

import support
from support import PATIENCE, Client, Server, memory

COUNT, SEED, CLIENTS = 800, 1, 8
STATUSES = {100, 200, 400, 403, 404, 405, 408, 413, 415, 429, 431, 501, 503}
KNOWN = ("model", "prompt", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "n", "stop",
         "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "seed", "logprobs", "echo", "stream",
         "stream_options", "ignore_eos", "user", "response_format", "structured_outputs", "guided_json", "guided_regex",
         "guided_choice", "guided_grammar", "json_schema", "grammar", "best_of", "best_by", "use_beam_search", "length_penalty",
         "early_stopping", "priority")
CONSTRAINTS = ({"response_format": {"type": "json_object"}}, {"guided_regex": "(a?){6000}"}, {"guided_regex": "[a-z ]*"},
               {"guided_regex": "(fox ){3}(a?){2100}b"}, {"guided_regex": "(((((a*)*)*)*)*)*"}, {"guided_choice": ["fox", "lion"]},
               {"grammar": "root ::= root"}, {"grammar": 'root ::= "(" root ")" | "x"'}, {"guided_json": False},
               {"guided_json": {"$ref": "#"}}, {"guided_json": {"items": {"$ref": "#"}, "type": "array", "minItems": 1}},
               {"json_schema": {"properties": {"a": {"minLength": 1e9}}}}, {"structured_outputs": {"regex": "\\d{2}", "json": {}}},
               {"guided_regex": "\U0001f600{1,3}"})
NUMBERS = ("0", "-0", "-1", "1", "2", "1.5", "1e300", "-1e300", "1e-300", "1e999", "NaN", "Infinity", "2147483647", "2147483648",
           "-2147483649", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551616", "1" * 400,
           "0." + "0" * 400 + "1", "0x10", "01", "1.", ".5", "+1")
STRANGE = (*NUMBERS, "null", "true", "false", '""', '"x"', "[]", "{}", "[[]]", "[null]", '[1, "a"]', '{"a": 1}', '{"5": 100}', "[1, 2]",
           '["a", "b"]', '"\\ud800"', '"\\u0000"', '"' + "x" * 5000 + '"', '{"include_usage": 1}', '{"include_usage": true}', "[" * 50)
BYTES = (b"\x00", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xef\xbb\xbf", b"\r\n", b"\n", b"\r", b"\t", b'"', b"\\",
         b"{", b"]", b":", b",", b"\x7f", b"\x1b[31m", b"%00", b"\xe2\x80")
LEAVES, RESETS, HALF, READS = "leaves", "resets", "closes one half", "reads"


def request(body=b"", *fields, method=b"POST", target=b"/v1/completions", version=b"1.1", length=None):
    lines = [method + b" " + target + b" HTTP/" + version, b"Host: localhost", b"Content-Type: application/json", *fields]
    if length != b"":
        lines.append(b"Content-Length: " + (str(len(body)).encode() if length is None else length))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def completion(rng, **more):
    """The body of a request that a server may take."""
    keys = {"prompt": rng.choice(["Once", "The \u00e4 \U0001f600", [5, 6, 7], ["A", "B"], [[1], [2, 3]], [127, 195], "word " * 20]),
            "max_tokens": rng.choice([0, 1, 2, 8])}
    for key, values in (("temperature", [0, 0.5, 2, 100]), ("top_p", [0, 0.5, 1]), ("top_k", [-1, 0, 1, 50]), ("min_p", [0, 0.2, 1]),
                        ("n", [1, 2, 8]), ("stop", ["e", ["a", "b"], "\ufffd", "\u00e4"]), ("seed", [0, -1, 2**63 - 1]),
                        ("logprobs", [0, 1, 20]), ("echo", [True, False]), ("stream", [True, False]), ("ignore_eos", [True]),
                        ("presence_penalty", [-2, 2]), ("repetition_penalty", [0.125, 100]), ("logit_bias", [{"5": 100}, {"127": 50}])):
        if rng.random() < 0.2:
            keys[key] = rng.choice(values)
    if rng.random() < 0.2:
        keys |= rng.choice(CONSTRAINTS)
    return json.dumps({**keys, **more}, ensure_ascii=rng.random() < 0.5).encode()


def chunked(rng, body):
    """The body in chunks, most often with an error."""
    text, place = b"", 0
    while place < len(body):
        size = rng.randint(1, 1 + len(body) // 2)
        piece = body[place:place + size]
        place += size
        claimed = rng.choice([b"%x" % len(piece)] * 6 + [b"%X" % len(piece), b"-1", b"ffffffffffffffff", b"1" * 40, b"", b"0x5", b" 5", b"g",
                                                          b"%x" % (len(piece) + 1)])
        extension = rng.choice([b""] * 6 + [b";a", b";a=b", b';a="b', b";" * 50, b";" + b"x" * 20000])
        text += claimed + extension + rng.choice([b"\r\n"] * 9 + [b"\n"]) + piece + rng.choice([b"\r\n"] * 9 + [b"", b"\n", b"xx"])
    return text + rng.choice([b"0\r\n\r\n"] * 5 + [b"", b"0\r\n", b"0", b"0\r\nX: y\r\n\r\n", b"0\r\n" + b"X: y\r\n" * 5000, b"00000\r\n\r\n",
                                                   b"0\r\nno field\r\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n"])


def mutated(rng, text):
    """Some bytes are replaced, deleted, inserted, repeated or moved."""
    text = bytearray(text)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        place = rng.randrange(len(text) + 1)
        size = rng.choice([1, 1, 2, 8, 64])
        match rng.randrange(6):
            case 0:
                text[place:place + 1] = bytes([rng.randrange(256)])
            case 1:
                del text[place:place + size]
            case 2:
                text[place:place] = rng.choice(BYTES)
            case 3:
                text[place:place] = text[place:place + size] * rng.choice([1, 2, 100])
            case 4:
                text[place:place] = rng.choice(NUMBERS).encode()
            case 5:
                other = rng.randrange(len(text) + 1)
                text[place:place + size], text[other:other + size] = text[other:other + size], text[place:place + size]
        text = text or bytearray(b"x")
    return bytes(text)


# Each kind gives the pieces that a client sends.

def truncated(rng):
    whole = request(completion(rng))
    return [whole[:rng.randrange(len(whole))]]


def wrong_chunks(rng):
    coding = rng.choice([b"chunked"] * 8 + [b"Chunked", b"gzip, chunked", b"chunked, chunked", b"cow", b"chunked\r\nTransfer-Encoding: chunked"])
    length = rng.choice([b""] * 5 + [b"5"])
    return [request(b"", b"Transfer-Encoding: " + coding, length=length) + chunked(rng, completion(rng))]


def wrong_length(rng):
    body = completion(rng)
    length = rng.choice([*(number.encode() for number in NUMBERS), b"", b" ", b"5, 5", b"5\r\nContent-Length: 6", str(len(body) + 1).encode(),
                         str(len(body) - 1).encode(), b"2097153", b"2097152"])
    return [request(body, length=length)]


def no_utf8(rng):
    body = completion(rng)
    for _ in range(rng.randint(1, 5)):
        place = rng.randrange(len(body))
        body = body[:place] + rng.choice(BYTES) + body[place:]
    return [request(body)]


def wrong_types(rng):
    keys = {"prompt": '"A"', "max_tokens": "1"}
    for key in rng.sample(KNOWN, rng.choice([1, 1, 2, 5])):
        keys[key] = rng.choice(STRANGE)
    return [request(("{" + ", ".join(f'"{key}": {value}' for key, value in keys.items()) + "}").encode())]


def wrong_keys(rng):
    keys = [rng.choice([*KNOWN, "max_token", "suffix", "messages", "", "\\u0000", "x" * 3000, "PROMPT", "__proto__"])
            for _ in range(rng.randint(1, 6))]
    return [request(("{" + ", ".join(f'"{key}": {rng.choice(STRANGE)}' for key in ["prompt", *keys]) + "}").encode())]


def many_keys(rng):
    count = rng.choice([1000, 2000, 2001, 50000])
    return [request(json.dumps({"prompt": "A", "max_tokens": 1, **{f"key{i}": i for i in range(count)}}).encode())]


def deep(rng):
    depth = rng.choice([10, 100, 1000, 100000])
    begin, end = rng.choice([("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
    inner = begin * depth + rng.choice(["", "1"]) + end * (depth if rng.random() < 0.7 else rng.randrange(depth))
    return [request(('{"' + rng.choice(KNOWN + ("other",)) + '": ' + inner + "}").encode())]


def large_values(rng):
    prompt = rng.choice(["word " * 100000, "\u00e4" * 300000, [5] * 60000, [[5]] * 129, ["a"] * 5000, "\ufffd" * 1000, [0.5] * 5, [1e300], [-1]])
    return [request(json.dumps({"prompt": prompt, "max_tokens": 1, "stop": rng.choice(["x", "x" * 300, ["y"] * 20])}).encode())]


def pipelined(rng):
    one = [request(completion(rng)), b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HEAD / HTTP/1.1\r\nHost: a.localhost\r\n\r\n", b"\r\n",
           request(b"{", target=b"/nowhere"), request(completion(rng, stream=True)), mutated(rng, request(completion(rng)))]
    return [b"".join(rng.choice(one) for _ in range(rng.choice([2, 5, 100])))]


def large_work(rng):
    return [request(json.dumps({"prompt": [5] * rng.choice([1, 400]), "n": rng.choice([1, 16]), "max_tokens": rng.choice([0, 100]),
                                "ignore_eos": True, "stream": rng.random() < 0.5, "logprobs": 20, "echo": True}).encode())]


def slow(rng):
    whole = request(completion(rng)) if rng.random() < 0.5 else mutated(rng, request(completion(rng)))
    places = sorted(rng.randrange(len(whole)) for _ in range(rng.randint(1, 6)))
    return [whole[begin:end] for begin, end in zip([0, *places], [*places, len(whole)])]


def old_version(rng):
    version = rng.choice([b"1.0"] * 6 + [b"0.9", b"1.2", b"2.0", b"1", b"11", b"-1.1", b""])
    fields = rng.sample([b"Connection: keep-alive", b"Expect: 100-continue", b"Transfer-Encoding: chunked", b"X: y"], rng.randint(0, 2))
    return [request(completion(rng), *fields, version=version)]


def wrong_header(rng):
    fields = rng.choice([[b"X: " + b"y" * rng.choice([100, 20000])], [b"X%d: y" % i for i in range(rng.choice([100, 3000]))], [b"no field"],
                         [b"X : y"], [b" folded"], [b"X: \x00"], [b": y"], [b"Host: other"], [b"Expect: 100-continue"], [b"Expect: more"],
                         [b"Connection: close, keep-alive, upgrade", b"Upgrade: h2c"], [b"Content-Encoding: gzip"],
                         [b"Content-Type: text/plain"], [b"Authorization: Bearer " + b"k" * 5000], [b"X-Request-Id: " + b"i" * 500], [b"X\xff: y"]])
    method = rng.choice([b"POST"] * 5 + [b"GET", b"HEAD", b"OPTIONS", b"CONNECT", b"TRACE", b"post", b"P" * 5000, b"\xff", b""])
    target = rng.choice([b"/v1/completions"] * 5 + [b"*", b"/", b"//", b"http://", b"http://localhost", b"http://evil.example/", b"/%00", b"/\xff",
                                                    b"/v1/models/" + b"m" * 9000, b"/v1/models/\x1b", b"x", b"/metrics", b"/openapi.json", b"/health?" * 9])
    return [request(completion(rng), *fields, method=method, target=target)]


def no_http(rng):
    return [rng.choice([rng.randbytes(rng.choice([1, 10, 1000, 30000])), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(500),
                        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n" * 20000, b"x" * 30000, b" ", b"GET", b"GET / HTTP/1.1\r\r\n\n", b""])]


def any_mutation(rng):
    return [mutated(rng, request(completion(rng)))]


def mutated_body(rng):
    return [request(mutated(rng, completion(rng)))]


def fine(rng):
    return [request(completion(rng))]


KINDS = (truncated, wrong_chunks, wrong_length, no_utf8, wrong_types, wrong_types, wrong_keys, many_keys, deep, large_values, pipelined,
         large_work, slow, old_version, wrong_header, no_http, any_mutation, any_mutation, mutated_body, mutated_body, fine)


def made(seed, number):
    """(kind, pieces, how the client ends) of a request."""
    rng = random.Random(f"{seed} {number}")
    kind = rng.choice(KINDS)
    return kind.__name__, kind(rng), rng.choice([READS] * 6 + [LEAVES, LEAVES, RESETS, HALF])


def send(server, seed, number):
    """The statuses of the answers; what is none raises AssertionError."""
    kind, pieces, ending = made(seed, number)
    said, name = b"", f"request {number} of seed {seed}, {kind}"
    with server.socket(10) as client:
        try:
            for index, piece in enumerate(pieces):
                if index:
                    time.sleep(0.005)
                client.sendall(piece)
            if ending == RESETS:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif ending == HALF:
                client.shutdown(socket.SHUT_WR)
            client.settimeout(0.1 * PATIENCE)
            while ending in (READS, HALF) and (piece := client.recv(1 << 16)):
                said += piece
        except (ConnectionError, TimeoutError):
            pass  # the server may have closed the connection, or waits for more
    if said and not re.match(rb"HTTP/1\.[01] \d{3} ", said):
        raise AssertionError(f"{name}: {said[:200]}")
    statuses = [int(status) for status in re.findall(rb"(?:^|\n|\}|\0)HTTP/1\.[01] (\d{3}) [A-Z][A-Za-z ]+\r\n", said)]
    if not set(statuses) <= STATUSES:
        raise AssertionError(f"{name}: {statuses}: {said[:2000]}")
    return kind, statuses


def attack(server, count, seed, tell=lambda line: None):
    """Sends `count` requests. Returns how often each status came, and the memory after half of them, when it has been
    used for all kinds, and after all."""
    wanted = server.texts("Once upon a time", temperature=0)
    seen, memories = {}, []
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        for first, end in ((0, count // 2), (count // 2, count)):
            for begin in range(first, end, 500):
                numbers = range(begin, min(begin + 500, end))
                for kind, statuses in clients.map(lambda number: send(server, seed, number), numbers):
                    for status in statuses or ["none"]:
                        seen[status] = seen.get(status, 0) + 1
                if server.ask("GET", "/health")[0] != 200:
                    raise AssertionError("/health")
                tell(f"{numbers[-1] + 1} requests, {memory(server) >> 20} MiB")
            if not support.wait_until(lambda: sum(server.load()) == 0, 60):
                raise AssertionError(f"texts of clients that left are still there: {server.load()}")
            memories.append(memory(server) >> 20)
    if server.texts("Once upon a time", temperature=0) != wanted:
        raise AssertionError("the text is another one than before")
    return seen, memories


def server_of(program=None):
    """A small one with few places, so that its queue is full at times."""
    return Server("--max-batch-size", 8, "--max-queue", 40, model="tales-1m", program=program)


class Hostile(unittest.TestCase):
    def test_random_requests_break_nothing(self):
        with server_of() as server:
            seen, (before, after) = attack(server, COUNT, SEED)
        self.assertLess(after - before, 16, "MiB")
        self.assertGreater(seen[200], COUNT / 10)
        self.assertGreater(seen[400], COUNT / 4)
        for status in (404, 413, 431):
            self.assertIn(status, seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", type=int, metavar="NUMBER")
    parser.add_argument("--program", type=Path)
    parser.add_argument("--port", type=int)
    options = parser.parse_args()

    def run(server):
        if options.only is not None:
            print(*made(options.seed, options.only), send(server, options.seed, options.only), sep="\n")
            return
        seen, (before, after) = attack(server, options.requests, options.seed, lambda line: print(line, file=sys.stderr))
        print(f"answers: {dict(sorted(seen.items(), key=str))}; {before} MiB after half, {after} MiB at the end")

    if options.port:
        run(Client(options.port))
    else:
        with server_of(options.program) as server:
            try:
                run(server)
            except Exception:
                print(server.said(), file=sys.stderr)  # such as a sanitizer's report
                raise


if __name__ == "__main__":
    main()
