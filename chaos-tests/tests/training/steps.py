"""A worker of a parameter server that trains nothing: each step pushes -1 for each of 4096 values. With plain SGD of rate 1 every value then
counts the pushes that were applied. Speaks docs/worker-protocol.md with the standard library alone.

`nap` is how long a step takes.
"""

import http.client
import json
import os
import socket
import struct
import sys
import time

VALUES = 4096
# How long a node may be away, in tenths of a second.
PATIENCE = 1200


class Node(http.client.HTTPConnection):
    """The node beside it."""

    def __init__(self):
        super().__init__("mesh", timeout=100)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.environ["MESH_SOCKET"])


def ask(verb, path, body=None):
    """The answer. A node that is away comes back, and is asked the same again."""
    for _ in range(PATIENCE):
        node = Node()
        try:
            node.request(verb, path, None if body is None else json.dumps(body))
            answer = node.getresponse()
            status, told = answer.status, json.loads(answer.read())
            if status < 400:
                return told
            if status < 500:
                sys.exit(f"refused: {told}")
        except (OSError, http.client.HTTPException, ValueError):
            pass
        finally:
            node.close()
        time.sleep(0.1)
    sys.exit("there is no node")


def write(name, value):
    about = {"dtype": "F32", "shape": [VALUES], "data_offsets": [0, 4 * VALUES]}
    header = json.dumps({"w": about}).encode()
    header += b" " * (-len(header) % 8)
    with open(os.path.join(os.environ["MESH_TENSORS"], name), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + struct.pack("<f", value) * VALUES)


def read(name):
    with open(os.path.join(os.environ["MESH_TENSORS"], name), "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        file.read(length)
        return struct.unpack(f"<{VALUES}f", file.read())


def main():
    nap = float(os.environ.get("MESH_PARAM_NAP", "0"))
    ask("POST", "/v1/join", {"protocol": 1})
    while True:
        told = ask("GET", "/v1/next")
        if told["state"] == "done":
            return
        if told["state"] == "first":
            write("out.safetensors", 0.0)
            ask("POST", "/v1/first", {"model": "out.safetensors"})
        elif told["state"] == "step":
            values = read(ask("POST", "/v1/pull", {})["model"])
            time.sleep(nap)
            write("out.safetensors", -1.0)
            metrics = {"level": values[0], "last": values[-1]}
            pushed = ask("POST", "/v1/push", {"step": told["step"], "update": "out.safetensors", "metrics": metrics})
            if not pushed["taken"]:
                print("not taken:", told["step"], pushed["why"], flush=True)
        else:
            time.sleep(0.05)


main()
