"""A server for the pages that answers as a test says: late, in part, not at all, or as a proxy would."""

import json
import queue
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAIT = "wait until the test calls go()"
STOP, LENGTH = {"finish_reason": "stop"}, {"finish_reason": "length"}
CUT = "close the connection in the middle"
CONTEXT = 512


def refusal(status, message):
    """What this project's servers answer when they reject a request."""
    return status, "application/json", json.dumps({"error": {"message": message}})


def html(status):
    """What a proxy answers when the server is gone."""
    return status, "text/html", f"<!DOCTYPE html><h1>{status}</h1>"


class Request:
    """One that has come; go() lets its answer continue at the next WAIT."""

    def __init__(self, body, authorization, reply):
        self.body, self.authorization, self.reply, self.steps = body, authorization, reply, threading.Semaphore(0)
        self.waits = reply.count(WAIT)

    def go(self):
        self.waits -= 1
        self.steps.release()

    def messages(self):
        return [(message["role"], message["content"]) for message in self.body["messages"]]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, status, kind, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/openapi.json":
            body = {"properties": {"model": {"enum": ["parrot", None]}, "max_tokens": {"maximum": CONTEXT}}}
            schemas = {"ChatRequest": body, "CompletionRequest": body}
            self.send(200, "application/json", json.dumps({"components": {"schemas": schemas}}))
        else:
            self.send(200, "text/html; charset=utf-8", self.server.page.read_text(encoding="utf-8"))

    def do_POST(self):
        self.close_connection = True
        if self.server.gone:  # a browser may have connected before
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        reply = [refusal(500, "This request is not in the script.")] if self.server.replies.empty() else self.server.replies.get()
        request = Request(body, self.headers["Authorization"], reply)
        self.server.requests.append(request)
        try:
            self.answer(request)
        except OSError:  # the page has left
            pass

    def answer(self, request):
        """Sends the parts of the reply: a text is a token, a dictionary an event, and a tuple a whole answer."""
        streams = False
        for part in request.reply:
            if part is WAIT:
                request.steps.acquire()
            elif part is CUT:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            elif isinstance(part, tuple):
                self.send(*part)
                return
            else:
                if not streams:
                    self.send_response(200)
                    self.send_header("Content-Type", "text/event-stream")
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    streams = True
                self.event(part if "error" in part and isinstance(part, dict) else self.chunk(part))
        self.event("[DONE]" if request.reply[-1] in (STOP, LENGTH) else None)
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, part):
        if isinstance(part, dict) and "choices" in part:
            return part
        text, finish = (part, None) if isinstance(part, str) else (part.get("text", ""), part["finish_reason"])
        if self.path == "/v1/completions":
            logprobs = {"tokens": [text], "top_logprobs": [{text: -0.5, "other": -1.5}]} if text else None
            return {"choices": [{"text": text, "logprobs": logprobs, "finish_reason": finish}]}
        top = [{"token": text, "logprob": -0.5}, {"token": "other", "logprob": -1.5}]
        told = {"content": [{"token": text, "logprob": -0.5, "top_logprobs": top}]} if text else None
        return {"choices": [{"delta": {"content": text} if text else {}, "logprobs": told, "finish_reason": finish}]}

    def event(self, event):
        if event is not None:
            data = f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


class ScriptedServer:
    """Serves one page as it is in the source; `replies` are for the next requests, and `requests` have come."""

    def __init__(self, page):
        self.page, self.replies, self.requests, self.port = page, queue.Queue(), [], 0
        self.start()

    def forget(self):
        """Begins a new script."""
        self.requests.clear()
        self.replies.queue.clear()

    def start(self):
        self.http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.http.gone, self.http.block_on_close = False, False
        self.http.page, self.http.replies, self.http.requests = self.page, self.replies, self.requests
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self):
        """The port refuses connections; answers that have begun go on."""
        self.http.gone = True
        self.http.shutdown()
        self.http.server_close()
