"""The worker's side of docs/worker-protocol.md: whom it asks, and what it is told.

    Client   the node beside this worker: HTTP on a Unix socket, one request at a time
    Alone    plays the node where there is none, so that a script can be tried

Both have `joined`, `tensors` and `ask`. The node may be restarted, and the worker goes on: a connection that breaks is made
again, for up to a minute, and what was asked is asked again. All requests of the protocol may be repeated.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time

from ._tensors import Error, load, numpy, shapes

PROTOCOL = 1
# For so long a node that does not answer is tried again.
PATIENCE = 60.0
# Between two tries; each pause is twice as long as the last one.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
# A node that says nothing for so long is taken for dead. It answers `next` after 20 s.
SILENCE = 120.0
MAX_BODY_BYTES = 1 << 20
JOIN = "/v1/join"


class Unreachable(Error):
    """The node did not answer, for longer than a restart takes."""


class Refused(Error):
    """The node refused a request, and says why."""

    def __init__(self, status, message, cause=None, hint=None):
        self.status, self.message, self.cause, self.hint = status, message, cause, hint
        lines = [message]
        lines += [f"cause: {cause}"] if cause else []
        lines += [f"try:   {hint}"] if hint else []
        super().__init__("\n".join(lines))


class NotThere(Error, KeyError):
    """There is no data or parameter of this name; it says which there are."""

    # That of KeyError puts the text in quotes.
    __str__ = Exception.__str__


class _Unwell(Exception):
    """The node answered that it cannot answer right now."""


class _Connection(http.client.HTTPConnection):
    # A connection that was closed is noticed here, so that the next one begins with `join`.
    auto_open = 0

    def __init__(self, path):
        super().__init__("mesh")
        self._path = path

    def connect(self):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(SILENCE)
            sock.connect(self._path)
        except BaseException:
            sock.close()
            raise
        self.sock = sock


class Client:
    """See the module. Threads may share it, and a forked process has a connection of its own."""

    def __init__(self, path, tensors):
        self.path, self.tensors, self._connection = path, tensors, None
        self._renew()

    def _renew(self):
        # In a forked process: what the other one goes on with is only let go here.
        self._close()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._joined = None

    @property
    def joined(self):
        """What this worker is part of."""
        if self._joined is None:
            self.ask("POST", JOIN)
        return self._joined

    def ask(self, method, path, body=None, patience=PATIENCE, silence=SILENCE):
        """Asks until there is an answer. Raises Refused, or Unreachable once patience (seconds) is at its end."""
        payload = None if body is None else json.dumps(body, allow_nan=False).encode()
        if os.getpid() != self._pid:
            self._renew()
        with self._lock:
            give_up, pause = time.monotonic() + patience, FIRST_PAUSE
            while True:
                was_open = self._connection is not None
                try:
                    return self._ask_once(method, path, payload, silence)
                except (OSError, http.client.HTTPException, _Unwell) as cause:
                    self._close()
                    # A connection at rest may be closed; that says nothing about a new one.
                    if was_open:
                        continue
                    if time.monotonic() + pause > give_up:
                        text = f"the node at {self.path} does not answer: {cause or type(cause).__name__}"
                        raise Unreachable(text) from cause
                except Refused:
                    raise
                except BaseException:
                    # Nobody will read the answer to this request.
                    self._close()
                    raise
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _ask_once(self, method, path, payload, silence):
        if self._connection is None:
            connection = _Connection(self.path)
            connection.connect()
            self._connection = connection
            # A node that was restarted does not know this worker.
            try:
                joined = self._exchange("POST", JOIN, json.dumps({"protocol": PROTOCOL}).encode())
                if joined.get("protocol") != PROTOCOL:
                    raise Error(f"the node speaks protocol {joined.get('protocol')}, and this package {PROTOCOL}")
            except Exception:
                self._close()
                raise
            self._joined = joined
            if path == JOIN:
                return joined
        if self._connection.sock is not None:
            self._connection.sock.settimeout(silence)
        return self._exchange(method, path, payload)

    def _exchange(self, method, path, payload):
        headers = {} if payload is None else {"Content-Type": "application/json"}
        self._connection.request(method, path, body=payload, headers=headers)
        response = self._connection.getresponse()
        text = response.read(MAX_BODY_BYTES + 1)
        if len(text) > MAX_BODY_BYTES:
            raise Error(f"the node's answer to {path} is too long")
        if response.length:
            raise http.client.IncompleteRead(text, response.length)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if 200 <= response.status < 300:
            if not isinstance(answer, dict):
                raise Error(f"the node's answer to {path} was not understood: {text[:80]!r}")
            return answer
        told = answer.get("error") if isinstance(answer, dict) else None
        told = told if isinstance(told, dict) else {}
        message = told.get("message") or f"{method} {path} was answered with status {response.status}"
        if response.status >= 500:
            raise _Unwell(message)
        raise Refused(response.status, message, told.get("cause"), told.get("try"))

    def _close(self):
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class Alone:
    """A mesh of this process alone: what is submitted in a round is the model of the next one."""

    def __init__(self, rounds):
        self.rounds, self._submitted, self._folder = rounds, None, None
        self.joined = {
            "protocol": PROTOCOL, "job": "alone", "name": "alone", "kind": "federated", "party": "alone", "task": 0,
            "attempt": 1, "rounds": rounds, "params": {}, "strategy": {"name": "fedavg"},
        }  # fmt: skip

    @property
    def tensors(self):
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="mesh-alone-")
            atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def ask(self, method, path, body=None, **_):
        """Answers as a node would."""
        call = path.partition("?")[0]
        if call == "/v1/next":
            return self._next()
        if call == "/v1/submit":
            return self._submit(body)
        if call in ("/v1/evaluated", "/v1/metrics"):
            at = f"round {body['round']}, of {body['examples']}" if "round" in body else f"step {body['step']}"
            _say(f"{at}: {_shown(body['metrics'])}")
        return {}

    def _model(self, number):
        return f"model-{number}.safetensors"

    def _next(self):
        base = self._submitted
        number = 0 if base is None else base + 1
        if number >= self.rounds:
            return {"state": "done"}
        model = None if base is None else self._model(base)
        return {"state": "round", "round": number, "model": model, "base": base}

    def _submit(self, body):
        update = os.path.join(self.tensors, body["update"])
        base = self._submitted
        if base is not None:
            model = os.path.join(self.tensors, self._model(base))
            check_alike(shapes(update), shapes(model))
        for name, array in load(update).items():
            if not numpy().isfinite(array).all():
                raise Refused(400, f"tensor {name!r} holds a value that is no finite number")
        number = body["round"]
        os.replace(update, os.path.join(self.tensors, self._model(number)))
        if base is not None and base != number:
            # Arrays that are still mapped keep their pages.
            os.unlink(model)
        self._submitted = number
        _say(f"round {number}: {body['examples']} examples, {_shown(body['metrics'])}")
        return {"taken": True}


def check_alike(ours, model):
    """Raises if these shapes, by name, are not those of the model."""
    for name, shape in model.items():
        if name not in ours:
            raise Refused(400, f"tensor {name!r} is missing")
        if ours[name] != shape:
            raise Refused(400, f"tensor {name!r} has shape {ours[name]}, and {shape} in the model")
    for name in ours:
        if name not in model:
            raise Refused(400, f"tensor {name!r} is not part of the model")


def _shown(metrics):
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "no metrics"


def _say(text):
    print(f"mesh: {text}", file=sys.stderr, flush=True)
