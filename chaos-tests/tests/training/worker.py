"""A worker that trains nothing: each round adds one to each of eight values. Speaks docs/worker-protocol.md with the standard library alone.

One party's worker can be told to misbehave: the parameters `odd` (which party) and `how`. It never does in the round that makes the
first model. Files in its home let it go: `go` at the beginning, `on` from the round `hold` on. `sent-N` says that it handed in round N.
"""

import http.client
import json
import math
import os
import socket
import struct
import sys
import time

VALUES = 8
EXAMPLES = 10
# What it ends with if its node refuses an update.
REFUSED = 3
# How long a node may be away, in tenths of a second.
PATIENCE = 1200


class Node(http.client.HTTPConnection):
    """The node beside it."""

    def __init__(self):
        super().__init__("mesh", timeout=60)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.environ["MESH_SOCKET"])


def ask(verb, path, body=None):
    """The status of an answer, and the answer. A node that is away comes back."""
    for _ in range(PATIENCE):
        node = Node()
        try:
            node.request(verb, path, None if body is None else json.dumps(body))
            answer = node.getresponse()
            status, told = answer.status, json.loads(answer.read())
            if status < 500:
                return status, told
        except (OSError, http.client.HTTPException, ValueError):
            pass
        finally:
            node.close()
        time.sleep(0.1)
    sys.exit("there is no node")


def place(name):
    return os.path.join(os.environ["MESH_TENSORS"], name)


def read(name):
    with open(place(name), "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(length))["w"]["data_offsets"]
        return list(struct.unpack(f"<{VALUES}f", file.read()[begin:end]))


def write(name, values):
    about = {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, 4 * len(values)]}
    header = json.dumps({"w": about}).encode()
    header += b" " * (-len(header) % 8)
    with open(place(name), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + struct.pack(f"<{len(values)}f", *values))


def wait_for(file):
    while not os.path.exists(file):
        time.sleep(0.02)


def param(name, default):
    return type(default)(os.environ.get("MESH_PARAM_" + name.upper(), default))


def spoilt(values, how, number):
    """The values as a worker hands them in that misbehaves so."""
    if how == "nan":
        values[0] = math.nan
    elif how == "shape":
        values.append(1.0)
    elif how == "huge":
        values = [1e30] * len(values)
    elif how == "silent":
        time.sleep(100_000)
    elif how == "slow" and number % 2 == 1:
        time.sleep(5)
    return values


def main():
    # Whoever is started again was let go before.
    if os.environ["MESH_ATTEMPT"] == "1":
        wait_for("go")
    _, joined = ask("POST", "/v1/join", {"protocol": 1})
    how = param("how", "") if joined["party"] == param("odd", "") else ""
    nap, hold = param("nap", 0.0), param("hold", 1_000_000)
    after = None
    while True:
        _, told = ask("GET", "/v1/next" if after is None else f"/v1/next?after={after}")
        if told["state"] == "done":
            return
        if told["state"] != "round":
            time.sleep(0.05)
            continue
        number, values = told["round"], [0.0] * VALUES
        if told["model"] is not None:
            values = read(told["model"])
            metrics = {"level": values[0]}
            ask("POST", "/v1/evaluated", {"round": number, "examples": EXAMPLES, "metrics": metrics})
        time.sleep(nap)
        if number >= hold:
            wait_for("on")
        values = [value + 1.0 for value in values]
        if number > 0:
            values = spoilt(values, how, number)
        write("out.safetensors", values)
        body = {"round": number, "update": "out.safetensors", "examples": EXAMPLES, "metrics": {"train-loss": 1 / (number + 1)}}
        status, answer = ask("POST", "/v1/submit", body)
        if status != 200:
            print("refused:", answer, flush=True)
            sys.exit(REFUSED)
        open(f"sent-{number}", "w").close()
        after = number


main()
