"""Tensors in files: safetensors with F32, F16 and BF16.

    8 bytes    the length of the header, little-endian
    header     JSON: {"layer.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …}, padded with spaces
    values     of all tensors, one after the other

A file is mapped, not read: a tensor costs memory once somebody looks at it. It is written straight from the arrays, one
after the other. A header is checked before anything is made of it.
"""

from __future__ import annotations

import json
import os
import re
import sys

MAX_HEADER_BYTES = 1 << 20
MAX_TENSORS = 16384
MAX_NAME_BYTES = 256
MAX_VALUES = 1 << 36
# As many as every numpy allows.
MAX_SIDES = 32

# What each kind is in numpy. There is no bfloat16 there: its bits are kept as numbers.
KINDS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
BYTES = {"F32": 4, "F16": 2, "BF16": 2}
# What is written as F32 although it is something else: counters of batches, say, are part of PyTorch's models.
AS_F32 = re.compile(r"float(32|64|96|128)|u?int(8|16|32|64)|bool(_|8)?")


class Error(Exception):
    """Whatever mesh has to say that is not good."""


class BadTensors(Error, ValueError):
    """A file or a dict that does not hold tensors as they should be."""


def numpy():
    """numpy, once it is needed: `import mesh` works without it."""
    try:
        import numpy
    except ImportError:
        raise Error("numpy is not installed: pip install numpy, or apt install python3-numpy") from None
    return numpy


def load(path, bfloat16="float32", mode="r"):
    """The tensors of a file, by name: arrays that are mapped into memory, and read-only.

    numpy knows no bfloat16: such tensors are copied to float32, or with `bfloat16="uint16"` mapped as they are.
    With `mode="c"` the arrays can be written to, and the file stays as it is.
    """
    if bfloat16 not in ("float32", "uint16"):
        raise ValueError(f'bfloat16 is "float32" or "uint16", not {bfloat16!r}')
    np = numpy()
    with open(path, "rb") as file:
        tensors, start = read_header(file, path)
        mapped = np.memmap(file, dtype=np.uint8, mode=mode).view(np.ndarray)
    arrays = {}
    for name, (kind, shape, begin, end) in tensors.items():
        array = mapped[start + begin : start + end].view(KINDS[kind]).reshape(shape)
        if kind == "BF16" and bfloat16 == "float32":
            bits = array.astype("<u4")
            bits <<= 16
            array = bits.view("<f4")
        arrays[name] = array
    return arrays


def kinds(path):
    """The kinds of a file's tensors, by name: F32, F16, BF16."""
    with open(path, "rb") as file:
        return {name: kind for name, (kind, *_) in read_header(file, path)[0].items()}


def shapes(path):
    """The shapes of a file's tensors, by name."""
    with open(path, "rb") as file:
        return {name: shape for name, (_, shape, *_) in read_header(file, path)[0].items()}


def save(path, tensors):
    """Writes tensors into a file: arrays, tensors of PyTorch, or whatever can become an array.

    float16 and bfloat16 stay what they are; other numbers become float32. The file is there whole or not at all.
    """
    path = os.fspath(path)
    part = path + ".part"
    try:
        write(part, tensors)
        os.replace(part, path)
    except BaseException:
        if os.path.exists(part):
            os.unlink(part)
        raise


def write(path, tensors):
    """Writes tensors into a file, over what is in it: the memory of a file that is there is used again."""
    planned = [(name, *_described(name, value)) for name, value in tensors.items()]
    header, at = {}, 0
    for name, kind, shape, _ in planned:
        end = at + _count(shape) * BYTES[kind]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # Values begin at a multiple of eight.
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES or len(planned) > MAX_TENSORS:
        raise BadTensors(
            f"{len(planned)} tensors have a header of {len(text)} bytes: "
            f"{MAX_TENSORS} and {MAX_HEADER_BYTES} are allowed"
        )
    # Not the mode of a temporary file: the node has to read it.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, kind, shape, value in planned:
            values = _bytes(value, kind)
            if len(values) != _count(shape) * BYTES[kind]:
                raise BadTensors(f"tensor {name!r} changed while it was written")
            file.write(values)
        file.truncate()


def read_header(file, path):
    """What a file says of its tensors: kind, shape, first byte, byte after the last; and where its values begin."""

    def wrong(text):
        return BadTensors(f"{path}: {text}")

    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8:
        raise wrong("it is too short for a safetensors file")
    if length > MAX_HEADER_BYTES:
        raise wrong(f"its header has {length} bytes, and {MAX_HEADER_BYTES} are allowed")
    if 8 + length > size:
        raise wrong("it is cut off in its header")
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_once, parse_int=_whole)
    except (ValueError, RecursionError) as cause:
        raise wrong(f"its header is not one of safetensors: {cause}") from None
    if not isinstance(header, dict):
        raise wrong("its header is not one of safetensors: not an object")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        raise wrong(f"it has {len(header)} tensors, and {MAX_TENSORS} are allowed")

    tensors = {}
    for name, entry in header.items():
        _check_name(name)
        if not isinstance(entry, dict):
            raise wrong(f"tensor {name!r} is not described")
        kind, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(kind, str) or kind not in KINDS:
            raise wrong(f"tensor {name!r} holds {kind!r}, and F32, F16 and BF16 are known here")
        if not _are_lengths(shape) or not _are_lengths(offsets) or len(offsets) != 2:
            raise wrong(f"tensor {name!r} has a shape or a place that is none")
        # The sides that are not 0 count too: numpy multiplies them.
        if len(shape) > MAX_SIDES or _count([side for side in shape if side]) > MAX_VALUES:
            raise wrong(f"tensor {name!r} has too many sides or values")
        tensors[name] = (kind, tuple(shape), *offsets)
    at = 0
    for name, (kind, shape, begin, end) in sorted(tensors.items(), key=lambda item: item[1][2:]):
        wanted = (at, at + _count(shape) * BYTES[kind])
        if (begin, end) != wanted:
            raise wrong(f"tensor {name!r} is at bytes {(begin, end)}, and by the shapes it should be at {wanted}")
        at = end
    start = 8 + length
    if start + at != size:
        raise wrong(f"it has {size} bytes, and its header speaks of {start + at}")
    return tensors, start


def _once(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _whole(digits):
    if len(digits) > 20:
        raise ValueError("a number is too long")
    return int(digits)


def _are_lengths(value):
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _count(shape):
    count = 1
    for side in shape:
        count *= side
    return count


def _check_name(name):
    if not isinstance(name, str):
        raise BadTensors(f"tensors have names, and {name!r} is none")
    is_plain = not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", name)
    if not name or not is_plain or len(name.encode()) > MAX_NAME_BYTES or name == "__metadata__":
        raise BadTensors(f"tensor {name[:64]!r} has a name that cannot be written")


def _described(name, value):
    """Kind, shape, and the value itself, not yet copied from wherever it is."""
    _check_name(name)
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        value = numpy().asarray(value)
        dtype, shape = value.dtype, value.shape
    # "float32" of numpy, "torch.float32" of PyTorch.
    word = getattr(dtype, "name", str(dtype)).rpartition(".")[2]
    if word in ("float16", "bfloat16"):
        kind = {"float16": "F16", "bfloat16": "BF16"}[word]
    elif AS_F32.fullmatch(word):
        kind = "F32"
    else:
        raise BadTensors(f"tensor {name!r} holds {word}, and a model may hold numbers only")
    return kind, tuple(int(side) for side in shape), value


def _bytes(value, kind):
    """The bytes of a tensor. Copied only if it lies elsewhere, in another order or as something else."""
    np = numpy()
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if kind == "BF16":
            value = value.view(sys.modules["torch"].int16)
        value = value.numpy()
    array = np.asarray(value)
    if kind == "BF16":
        array = array.view("<u2")
    return np.ascontiguousarray(array, dtype=KINDS[kind]).reshape(-1).view(np.uint8).data
