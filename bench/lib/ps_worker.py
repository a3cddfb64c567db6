"""A worker of the benchmark `ps`: pulls and pushes values that it does not change, and sleeps in between, as if it computed.

Parameters: `values`, `nap` (ms a step takes), `slow` (of worker 0, so many times as long), `pause` (ms, once for each worker, at a step of its own).
Prints one line of JSON at its end: steps, seconds from its first step to its last.
"""
import http.client
import json
import os
import socket
import struct
import time

TENSORS = os.environ["MESH_TENSORS"]


def param(name, default):
    return type(default)(os.environ.get("MESH_PARAM_" + name.upper(), default))


class Node(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(100)
        self.sock.connect(os.environ["MESH_SOCKET"])


node = Node("mesh")


def ask(verb, path, body=None):
    while True:
        try:
            node.request(verb, path, None if body is None else json.dumps(body))
            answer = node.getresponse()
            told = json.loads(answer.read())
            if answer.status == 200:
                return told
        except (OSError, http.client.HTTPException, ValueError):
            node.close()
        time.sleep(0.05)


def write(values):
    about = {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}
    header = json.dumps({"w": about}).encode()
    header += b" " * (-len(header) % 8)
    with open(os.path.join(TENSORS, "out.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + bytes(4 * values))


def main():
    task = ask("POST", "/v1/join", {"protocol": 1})["task"]
    nap = param("nap", 0.0) / 1000 * (param("slow", 1.0) if task == 0 else 1.0)
    pause, values = param("pause", 0.0) / 1000, param("values", 1000)
    write(values)
    steps, began, ended = 0, None, None
    while True:
        told = ask("GET", "/v1/next")
        if told["state"] == "done":
            break
        if told["state"] == "first":
            ask("POST", "/v1/first", {"model": "out.safetensors"})
        elif told["state"] == "step":
            began = began or time.monotonic()
            ask("POST", "/v1/pull", {})
            time.sleep(nap)
            if steps == 10 * (task + 1):
                time.sleep(pause)
            ask("POST", "/v1/push", {"step": told["step"], "update": "out.safetensors"})
            steps, ended = steps + 1, time.monotonic()
        else:
            time.sleep(0.02)
    print(json.dumps({"steps": steps, "seconds": (ended or 0) - (began or 0)}), flush=True)


main()
