"""A node that is played: the worker protocol over a Unix socket, in a thread. It knows what the tests tell it, no more."""

import http.server
import json
import os
import pathlib
import shutil
import socketserver
import sys
import tempfile
import threading
import unittest
import urllib.parse
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import mesh  # noqa: E402
from mesh import _client  # noqa: E402

JOINED = {
    "protocol": 1, "job": "j1", "name": "mnist", "kind": "federated", "party": "clinic-a", "task": 0, "attempt": 1,
    "rounds": 3, "params": {"lr": "0.5", "batch-size": "32"}, "strategy": {"name": "fedprox", "mu": 0.01},
}  # fmt: skip


class Short(bytes):
    """Bytes that claim to be more than they are."""

    def __len__(self):
        return super().__len__() + 10


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    # What a test closes on purpose is not worth a trace.
    handle_error = lambda *_: None  # noqa: E731


class Node:
    """Plays rounds 0, 1, …: what is submitted is the next model."""

    def __init__(self, folder, rounds=3):
        self.folder, self.rounds = pathlib.Path(folder), rounds
        self.path = str(self.folder / "socket")
        self.tensors = self.folder / "tensors"
        self.tensors.mkdir(exist_ok=True)
        self.joined = dict(JOINED)
        # Everything that was asked: call, body. `joins` are counted apart.
        self.asked, self.joins, self.connections = [], 0, 0
        # What to answer instead of the usual, by call: functions of the request, each used once. None closes the connection.
        self.instead = {}
        # Whether each answer is the last one of its connection.
        self.closes = False
        self.submitted = None
        # So many bytes each update had, and the inode it was in.
        self.files = []
        self.server = None

    def start(self):
        node = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                node.connections += 1

            def address_string(self):
                return "worker"

            def log_message(self, *_):
                pass

            def do_GET(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                answer = node.answer(self.path, body)
                if answer is None:
                    self.close_connection = True
                    return
                status, body = answer
                payload = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(payload)))
                if node.closes:
                    self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(payload)
                # What was promised and does not come ends with the connection.
                self.close_connection |= isinstance(body, Short)

            do_POST = do_GET

        self.server = _Server(self.path, Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def stop(self):
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()
            os.unlink(self.path)
            self.server = None

    def bodies(self, call):
        return [body for path, body in self.asked if path.partition("?")[0] == "/v1/" + call]

    def answer(self, path, body):
        call = path.partition("?")[0].removeprefix("/v1/")
        if call == "join":
            self.joins += 1
        else:
            self.asked.append((path, body))
        if self.instead.get(call):
            return self.instead[call].pop(0)(body)
        return getattr(self, "on_" + call, lambda *_: (200, {}))(path, body)

    def on_join(self, _, body):
        return 200, self.joined

    def on_next(self, path, _):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)
        after = int(query["after"][0]) if "after" in query else None
        base = self.submitted
        number = 0 if base is None else base + 1
        assert after is None or after <= number, "a worker does not run ahead"
        if number >= self.rounds:
            return 200, {"state": "done"}
        model = None if base is None else f"model-{base}.safetensors"
        return 200, {"state": "round", "round": number, "model": model, "base": base}

    def on_submit(self, _, body):
        name = body["update"]
        assert "/" not in name
        update = self.tensors / name
        self.files.append((update.stat().st_size, update.stat().st_ino))
        shutil.copy(update, self.tensors / f"model-{body['round']}.safetensors")
        self.submitted = body["round"]
        return 200, {"taken": True}


class InMesh(unittest.TestCase):
    """A test inside of a played mesh."""

    rounds = 3

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.node = Node(folder.name, self.rounds).start()
        self.addCleanup(self.node.stop)
        environment = {"MESH_SOCKET": self.node.path, "MESH_TENSORS": str(self.node.tensors)}
        patch(self, mock.patch.dict(os.environ, environment))
        # Nothing here waits for long.
        patch(self, mock.patch.object(mesh, "BREATH", 0.01))
        forget(self)


class OutOfMesh(unittest.TestCase):
    """A test outside of any mesh."""

    def setUp(self):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MESH_")}
        patch(self, mock.patch.dict(os.environ, kept, clear=True))
        forget(self)


def patch(test, patcher):
    test.addCleanup(patcher.stop)
    return patcher.start()


def forget(test):
    """Each test meets its node for the first time."""

    def close():
        if isinstance(mesh._node, _client.Client):
            mesh._node._close()
        mesh._node = None

    close()
    test.addCleanup(close)
