"""A real HTTP server that sends scripted bytes."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Said:
    """One answer of the scripted server, in the chunks in which it is sent."""

    def __init__(self, chunks, status=200, headers=None, *, cut=False, hold=None, quiet=False):
        self.chunks, self.status, self.headers = chunks, status, headers or {}
        self.cut, self.hold, self.quiet = cut, hold, quiet


def whole(data, status=200, **headers):
    """A JSON answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Said([json.dumps(data).encode()], status, {"Content-Type": "application/json", **named})


def sse(*events, named=False, done=False, **options):
    """A stream of events; ``named`` as Anthropic sends them, ``done`` with OpenAI's last line."""
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if named else ""
        lines.append(f"{name}data: {json.dumps(event)}\n\n".encode())
    if done:
        lines.append(b"data: [DONE]\n\n")
    return Said(lines, headers={"Content-Type": "text/event-stream"}, **options)


class Script(ThreadingHTTPServer):
    """A server that answers requests from a script, and records them."""

    daemon_threads = True
    block_on_close = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.turns, self.requests, self.connections = [], [], set()
        self.gone, self.stopping = threading.Event(), threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def bodies(self):
        return [body for _, _, body in self.requests]

    def say(self, *turns):
        self.turns.extend(turns)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_POST(self):
        script = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        script.connections.add(self.client_address)
        script.requests.append((self.path, self.headers, body))
        turn = script.turns.pop(0) if len(script.turns) > 1 else script.turns[0]
        turn = turn(body) if callable(turn) else turn
        self.send_response(turn.status)
        for name, value in {**turn.headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for chunk in turn.chunks:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            if turn.hold is not None:
                self._hold(turn.hold)
            if turn.quiet:
                script.stopping.wait()
            if turn.cut:
                self.close_connection = True
                return
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            script.gone.set()

    def _hold(self, more):
        """Repeat the same piece until the client disconnects."""
        while not self.server.stopping.wait(0.01):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(more), more))
            self.wfile.flush()
