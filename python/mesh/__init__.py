"""Take part in a training of mesh, from Python.

    import mesh

    for round in mesh.rounds():
        weights = round.weights()                   # by name; {} where the first model is to be made
        …train on mesh.data("train")…
        round.submit(weights, examples=n, metrics={"loss": loss})

With a parameter server, in steps:

    for step in mesh.steps():
        weights = step.pull()                       # by name; {} where the first model is to be made: step.first(weights)
        …gradients of batch number step.number…
        step.push(gradients, metrics={"loss": loss})

The package is there in every task that mesh runs; `mesh submit job.toml` runs one. To try a script without a mesh:
`MESH_TRY=3 MESH_DATA_TRAIN=… python3 train.py`. It speaks docs/worker-protocol.md, and needs numpy alone.
"""

from __future__ import annotations

import math
import os
import pathlib
import re
import sys
import time
import types
import warnings

from ._client import SILENCE, Alone, Client, NotThere, Refused, Unreachable
from ._tensors import BadTensors, Error, kinds, load, save, write

__version__ = "0.1.0"
__all__ = [
    "BadTensors", "Error", "NotThere", "Refused", "Round", "Step", "Unreachable",
    "data", "load", "metrics", "param", "rounds", "save", "steps",
]  # fmt: skip

MAX_METRICS = 16
# A node that has nothing to do says so after a while; one that says so at once is not asked again at once.
BREATH = 0.2
# Progress that follows sooner on what was told before is not worth a request.
PROGRESS_PAUSE = 0.2
# A node reads updates at more than so many bytes a second.
SLOWEST_READER = 20_000_000

_MISSING = object()
_OUT = re.compile(r"out-\d+\.safetensors(\.part)?")
_METRIC = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
# The node, once something was asked of it.
_node = None


def rounds(alone=None):
    """The rounds of this training, one after the other, for as long as there are any.

    Outside of mesh this is an error, unless a script is tried: `alone=3`, or MESH_TRY=3 in the environment, plays three
    rounds in this process, in which what was submitted is the model of the next round.
    """
    global _node
    if "MESH_SOCKET" in os.environ:
        node = _here()
    else:
        number = alone if alone is not None else os.environ.get("MESH_TRY")
        if number is None:
            raise Error(
                "this script runs outside of mesh: there is no MESH_SOCKET\n"
                "try:   mesh submit job.toml\n"
                "or:    MESH_TRY=3 python3 train.py, for three rounds without a mesh (data: MESH_DATA_TRAIN=DIR)"
            )
        if not str(number).isdecimal():
            raise ValueError(f"MESH_TRY and alone are a number of rounds, not {number!r}")
        node = _node = Alone(int(number))
    return _rounds(node)


def _rounds(node):
    if node.joined.get("kind") == "plain":
        raise Error('this job does not train, so it has no rounds\ntry:   kind = "federated" in job.toml')
    if not node.tensors:
        raise Error("there is no MESH_TENSORS: the node says where models lie")
    writer, after = _Writer(node.tensors), None
    while True:
        asked = time.monotonic()
        told = node.ask("GET", "/v1/next" if after is None else f"/v1/next?after={after}")
        state = told.get("state")
        if state == "round":
            now = Round(node, writer, told)
            yield now
            if now.taken is None and not now.is_refused:
                raise Error(f"round {now.number} was not submitted: every round ends with round.submit(weights, examples=n)")
            after = now.number if now.taken is not None else after
        elif state == "done":
            try:
                node.ask("POST", "/v1/done", {}, patience=0)
            except Error:
                # The node knows it already, and so does the exit code.
                pass
            return
        elif state != "wait":
            raise Error(f"the node says {state!r}, which this package does not know")
        elif time.monotonic() - asked < BREATH:
            time.sleep(BREATH)


class Round:
    """One round: a model comes, is trained, and goes."""

    def __init__(self, node, writer, told):
        #: Which round.
        self.number = told["round"]
        #: The round whose model came with this one; None where the first model is to be made.
        self.base = told.get("base")
        #: Whether what was submitted was taken; None before that.
        self.taken = None
        #: If it was not taken: why.
        self.why = None
        #: Whether the node refused what was submitted.
        self.is_refused = False
        self._node, self._writer, self._told_at = node, writer, None
        model = told.get("model")
        self._model = None if model is None else os.path.join(node.tensors, model)

    def __repr__(self):
        return f"<round {self.number}>"

    def weights(self, copy=False):
        """The model of this round: arrays by name, {} where there is none yet.

        They lie in memory that the node shares, and are read-only. With `copy` they are your own, to change in place.
        """
        if self._model is None:
            return {}
        arrays = load(self._model)
        return {name: array.copy() for name, array in arrays.items()} if copy else arrays

    def state_dict(self):
        """The same for PyTorch: tensors by name. They may be changed in place; nobody else sees it."""
        import torch

        if self._model is None:
            return {}
        of_kind, tensors = kinds(self._model), {}
        for name, array in load(self._model, bfloat16="uint16", mode="c").items():
            # PyTorch wants values at multiples of their size; a file need not have them there.
            array = array if array.flags.aligned else array.copy()
            if of_kind[name] == "BF16":
                tensors[name] = torch.from_numpy(array.view("<i2")).view(torch.bfloat16)
            else:
                tensors[name] = torch.from_numpy(array)
        return tensors

    def progress(self, part):
        """Says how far training has come, from 0 to 1. Call it as often as you like; it never fails for want of a node."""
        part, now = float(part), time.monotonic()
        if not 0 <= part <= 1:
            raise ValueError(f"progress is from 0 to 1, not {part}")
        if self._told_at is not None and now - self._told_at < PROGRESS_PAUSE:
            return
        self._told_at = now
        try:
            self._node.ask("POST", "/v1/progress", {"round": self.number, "part": part}, patience=0)
        except Unreachable:
            # It is said again soon.
            pass

    def evaluated(self, examples, metrics):
        """Says what the model that came with this round is worth, on data that was held back."""
        body = {"round": self.number, "examples": _count("examples", examples, 1), "metrics": _numbers(metrics)}
        self._node.ask("POST", "/v1/evaluated", body)

    def submit(self, weights, examples, metrics=None):
        """Hands in the new weights: a dict of arrays, of PyTorch's tensors, or of what can become an array.

        Whether they were taken is the answer; too late is not an error, `why` says so. `examples` is how many they were
        trained on, and so their weight.
        """
        body = {"round": self.number, "examples": _count("examples", examples, 1), "metrics": _numbers(metrics or {})}
        body["update"], size = self._writer.write(self.number, weights)
        try:
            told = self._node.ask("POST", "/v1/submit", body, silence=SILENCE + size / SLOWEST_READER)
        except Refused:
            self.is_refused = True
            raise
        self.taken, self.why = bool(told.get("taken")), told.get("why")
        if not self.taken:
            print(f"mesh: round {self.number} was not taken: {self.why}", file=sys.stderr, flush=True)
        return self.taken


def steps(first=None):
    """The steps of this worker with a parameter server, one after the other, for as long as there are any.

    `first` makes the first model: a function that gives a dict of arrays. Without it, one worker is given a step whose `is_first` is
    true, and calls `step.first(weights)`.
    """
    node = _here()
    if node.joined.get("kind") != "parameter-server":
        raise Error('this job has no parameter server, so it has no steps\ntry:   kind = "parameter-server" in job.toml')
    return _steps(node, first)


def _steps(node, first):
    writer = _Writer(node.tensors)
    while True:
        asked = time.monotonic()
        told = node.ask("GET", "/v1/next")
        state = told.get("state")
        if state == "first" and first is not None:
            Step(node, writer, 0, True).first(first())
        elif state == "first":
            now = Step(node, writer, 0, True)
            yield now
            if now.taken is None:
                raise Error("the first model was not made: where step.is_first, call step.first(weights)")
        elif state == "step":
            now = Step(node, writer, told["step"], False)
            yield now
            if now.taken is None:
                raise Error(f"step {now.number} was not pushed: every step ends with step.push(gradients)")
        elif state == "done":
            try:
                node.ask("POST", "/v1/done", {}, patience=0)
            except Error:
                # The node knows it already, and so does the exit code.
                pass
            return
        elif state != "wait":
            raise Error(f"the node says {state!r}, which this package does not know")
        elif time.monotonic() - asked < BREATH:
            time.sleep(BREATH)


class Step:
    """One step with a parameter server: values come, gradients go."""

    def __init__(self, node, writer, number, is_first):
        #: Which step, or which batch where batches are handed out: from 1 on. It may come once more, and may go back.
        self.number = number
        #: Whether the first model is to be made, with `first`.
        self.is_first = is_first
        #: Whether what was pushed was taken; None before that.
        self.taken = None
        #: If it was not taken: why.
        self.why = None
        #: How far the server was when values were pulled last.
        self.clock = None
        self._node, self._writer = node, writer

    def __repr__(self):
        return f"<step {self.number}>"

    def pull(self, tensors=None, ranges=None, copy=False):
        """The values by now: arrays by name, all of them or those of these tensors; of `ranges` ({name: (from, to)}) some values,
        flat. They are read-only, unless with `copy`. {} where the first model is to be made."""
        if self.is_first:
            return {}
        body = {}
        if tensors is not None:
            body["tensors"] = list(tensors)
        if ranges:
            body["ranges"] = {name: [int(begin), int(end)] for name, (begin, end) in ranges.items()}
        told = self._node.ask("POST", "/v1/pull", body)
        self.clock = told.get("clock")
        arrays = load(os.path.join(self._node.tensors, told["model"]))
        return {name: array.copy() for name, array in arrays.items()} if copy else arrays

    def push(self, gradients, ranges=None, metrics=None):
        """Hands in gradients: a dict of arrays, of all tensors or of some. Returns once the server and its backup have them.

        Whether they were taken is the answer; too late is not an error, `why` says so."""
        body = {"step": self.number, "metrics": _numbers(metrics or {})}
        if ranges:
            body["ranges"] = {name: [int(begin), int(end)] for name, (begin, end) in ranges.items()}
        body["update"], size = self._writer.write(self.number, gradients)
        told = self._node.ask("POST", "/v1/push", body, silence=SILENCE + size / SLOWEST_READER)
        self.taken, self.why = bool(told.get("taken")), told.get("why")
        return self.taken

    def first(self, weights):
        """Hands in the first model: a dict of arrays."""
        name, size = self._writer.write(0, weights)
        self._node.ask("POST", "/v1/first", {"model": name}, silence=SILENCE + size / SLOWEST_READER)
        self.taken = True

    def evaluated(self, examples, metrics):
        """Says what the values that were pulled are worth, on data that was held back. It goes with the next push."""
        body = {"step": self.number, "examples": _count("examples", examples, 1), "metrics": _numbers(metrics)}
        self._node.ask("POST", "/v1/evaluated", body)


class _Writer:
    """Writes updates. There is one file at most: each takes the place, the memory and then the name of the one before."""

    def __init__(self, folder):
        self._folder, self._last = folder, None

    def write(self, number, weights):
        """Name and length of the file."""
        name = f"out-{number}.safetensors"
        path = os.path.join(self._folder, name)
        part = path + ".part"
        if self._last is None:
            # Of a worker that was here before.
            for old in filter(_OUT.fullmatch, os.listdir(self._folder)):
                os.unlink(os.path.join(self._folder, old))
        elif os.path.exists(self._last):
            os.rename(self._last, part)
        self._last = part
        write(part, weights)
        os.rename(part, path)
        self._last = path
        return name, os.path.getsize(path)


def data(name):
    """Where the data of this name lies: what `[data]` in job.toml calls so."""
    path = os.environ.get("MESH_DATA_" + _variable(name))
    if path is None:
        there = _known("MESH_DATA_")
        hint = "write it into [data] of job.toml" if "MESH_SOCKET" in os.environ else f"set MESH_DATA_{_variable(name)}=DIR"
        raise NotThere(f"there is no data called {name!r}; there is: {there}\ntry:   {hint}")
    return pathlib.Path(path)


def param(name, default=_MISSING):
    """A parameter of the job, as what the default is: a bool, an int, a float, a Path or text. Text without a default."""
    params = _here().joined.get("params") or {}
    text = params.get(name, os.environ.get("MESH_PARAM_" + _variable(name)))
    if text is None:
        if default is not _MISSING:
            return default
        there = ", ".join(sorted(params)) or _known("MESH_PARAM_")
        raise NotThere(f"there is no parameter {name!r}; there is: {there}\ntry:   write it into [params] of job.toml")
    # As it would stand in job.toml.
    text = str(text).lower() if isinstance(text, bool) else str(text)
    try:
        if isinstance(default, bool):
            return _WORDS[text.strip().lower()]
        for kind in (int, float, pathlib.Path):
            if isinstance(default, kind):
                return kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"the parameter {name!r} is {text!r}, which is no {type(default).__name__}") from None
    return text


def metrics(step, values=None, /, **more):
    """Numbers to remember at a step, of any job, whether it trains or not: `mesh.metrics(100, loss=0.5)`."""
    _here().ask("POST", "/v1/metrics", {"step": _count("step", step, 0), "metrics": _numbers({**(values or {}), **more})})


def __getattr__(name):
    # `mesh.job`: asked for when somebody wants to know.
    if name == "job":
        return types.SimpleNamespace(**_here().joined)
    raise AttributeError(f"module 'mesh' has no attribute {name!r}")


def _here():
    """The node beside this worker, or what plays it."""
    global _node
    if _node is None:
        path, tensors = os.environ.get("MESH_SOCKET"), os.environ.get("MESH_TENSORS", "")
        _node = Client(path, tensors) if path else Alone(0)
    return _node


def _variable(name):
    """A name as part of a variable's name."""
    return "".join(c.upper() if c.isascii() and c.isalnum() else "_" for c in name)


def _known(prefix):
    names = sorted(key[len(prefix) :].lower() for key in os.environ if key.startswith(prefix))
    return ", ".join(names) or "none"


def _count(what, number, least):
    if int(number) != number or number < least:
        raise ValueError(f"{what} is a whole number from {least} on, not {number!r}")
    return int(number)


def _numbers(metrics):
    """Metrics as they are sent. JSON knows no NaN: such values are left out, and said so."""
    numbers = {}
    for name, value in metrics.items():
        value = float(value)
        if not _METRIC.fullmatch(name):
            raise ValueError(f"a metric's name has a-z, 0-9 and .-_ alone, and {name!r} has not")
        if math.isfinite(value):
            numbers[name] = value
        else:
            warnings.warn(f"the metric {name!r} is {value}, and left out", stacklevel=3)
    if len(numbers) > MAX_METRICS:
        raise ValueError(f"{len(numbers)} metrics, and {MAX_METRICS} are allowed")
    return numbers
