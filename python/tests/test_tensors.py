"""load and save, against bytes made by hand."""

import json
import os
import struct
import tempfile
import types
import unittest

import fake  # noqa: F401
import numpy as np

import mesh


def made(header, values=b""):
    """The bytes of a file."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + values


def f32(begin, end, shape=None):
    return {"dtype": "F32", "shape": shape or [(end - begin) // 4], "data_offsets": [begin, end]}


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "a.safetensors")

    def write(self, content):
        with open(self.path, "wb") as file:
            file.write(content)
        return self.path

    def read(self):
        with open(self.path, "rb") as file:
            return file.read()


class Load(Files):
    def test_reads_what_another_wrote(self):
        header = {
            "__metadata__": {"format": "pt"},
            "b": {"dtype": "F16", "shape": [2], "data_offsets": [24, 28]},
            "a": f32(0, 24, [2, 3]),
            "c": {"dtype": "F32", "shape": [], "data_offsets": [28, 32]},
            "empty": {"dtype": "F32", "shape": [0, 4], "data_offsets": [28, 28]},
        }
        values = struct.pack("<6f", *range(6)) + struct.pack("<2e", 0.5, -2) + struct.pack("<f", 7)
        loaded = mesh.load(self.write(made(header, values)))
        np.testing.assert_array_equal(loaded["a"], np.arange(6, dtype="f4").reshape(2, 3))
        np.testing.assert_array_equal(loaded["b"], np.array([0.5, -2], "f2"))
        self.assertEqual((loaded["c"].shape, float(loaded["c"])), ((), 7.0))
        self.assertEqual(loaded["empty"].shape, (0, 4))
        self.assertEqual([loaded[name].dtype.name for name in "abc"], ["float32", "float16", "float32"])

    def test_is_mapped_and_read_only(self):
        mesh.save(self.path, {"a": np.zeros(4, "f4")})
        array = mesh.load(self.path)["a"]
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        self.assertEqual(type(base).__name__, "mmap")
        with self.assertRaises(ValueError):
            array[0] = 1
        mine = mesh.load(self.path, mode="c")["a"]
        mine[0] = 1
        self.assertEqual(mesh.load(self.path)["a"][0], 0, "the file stays as it is")

    def test_values_need_not_be_aligned(self):
        loaded = mesh.load(self.write(made(json.dumps({"a": f32(0, 8)}).encode() + b" ", struct.pack("<2f", 1, 2))))
        self.assertEqual(loaded["a"].tolist(), [1, 2])

    def test_bfloat16_becomes_float32_or_stays_bits(self):
        header = {"a": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}
        # 1, -2, the largest below infinity, NaN.
        path = self.write(made(header, struct.pack("<4H", 0x3F80, 0xC000, 0x7F7F, 0x7FC0)))
        loaded = mesh.load(path)["a"]
        self.assertEqual(loaded.dtype, np.float32)
        self.assertEqual(loaded[:2].tolist(), [1, -2])
        self.assertGreater(loaded[2], 3.38e38)
        self.assertTrue(np.isnan(loaded[3]))
        bits = mesh.load(path, bfloat16="uint16")["a"]
        self.assertEqual(bits.tolist(), [0x3F80, 0xC000, 0x7F7F, 0x7FC0])
        with self.assertRaises(ValueError):
            mesh.load(path, bfloat16="float16")

    def test_hostile_headers_are_refused_and_named(self):
        eight = bytes(8)
        cases = [
            (b"", "too short"),
            (b"\x01\0\0", "too short"),
            (struct.pack("<Q", 2**63) + eight, "header has 9223372036854775808 bytes"),
            (struct.pack("<Q", (1 << 20) + 1) + bytes(1 << 21), "header has 1048577 bytes"),
            (struct.pack("<Q", 100) + eight, "cut off"),
            (made(b"\xff\xfe"), "not one of safetensors"),
            (made(b"[" * 100_000), "not one of safetensors"),
            (made(b'{"a": ' * 100_000), "not one of safetensors"),
            (made(b"[]"), "not an object"),
            (made(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,8]}}', eight), "too long"),
            (made(b'{"a": 1, "a": 2}'), "there twice"),
            (made({"a": 7}), "not described"),
            (made({"a": {"shape": [1], "data_offsets": [0, 4]}}), "holds None"),
            (made({"a": {**f32(0, 8), "dtype": "I64"}}, eight), "holds 'I64'"),
            (made({"a": {**f32(0, 8), "dtype": ["F32"]}}, eight), "holds ['F32']"),
            (made({"a": {**f32(0, 8), "shape": [-2]}}, eight), "shape or a place"),
            (made({"a": {**f32(0, 8), "shape": [2.0]}}, eight), "shape or a place"),
            (made({"a": {**f32(0, 8), "shape": [True, 2]}}, eight), "shape or a place"),
            (made({"a": {**f32(0, 8), "shape": "2"}}, eight), "shape or a place"),
            (made({"a": {**f32(0, 8), "data_offsets": [0]}}, eight), "shape or a place"),
            (made({"a": {**f32(0, 8), "data_offsets": [-8, 0]}}, eight), "shape or a place"),
            (made({"a": f32(0, 8, [1] * 33)}, eight), "too many sides"),
            (made({"a": f32(0, 8, [2**40, 2**40])}, eight), "too many sides"),
            (made({"a": {**f32(0, 8), "shape": [0, 2**62, 2**62]}}, eight), "too many sides"),
            (made({"a": f32(0, 8, [3])}, eight), "should be at (0, 12)"),
            (made({"a": f32(0, 16)}, eight), "header speaks of"),
            (made({"a": f32(0, 4)}, eight), "header speaks of"),
            (made({"a": f32(4, 8)}, eight), "should be at (0, 4)"),
            (made({"a": f32(0, 8), "b": f32(4, 8)}, eight), "should be at (8, 12)"),
            (made({"a": f32(0, 2**62)}, eight), "too many sides"),
            (made({"": f32(0, 8)}, eight), "cannot be written"),
            (made({"x" * 300: f32(0, 8)}, eight), "cannot be written"),
            (made({"a\nb": f32(0, 8)}, eight), "cannot be written"),
            (made(b'{"\\ud800": {"dtype":"F32","shape":[2],"data_offsets":[0,8]}}', eight), "cannot be written"),
            (made({str(n): f32(0, 0, [0]) for n in range(16385)}), "16385 tensors"),
        ]
        for content, words in cases:
            with self.subTest(words), self.assertRaises(mesh.BadTensors) as raised:
                mesh.load(self.write(content))
            self.assertIn(words, str(raised.exception))

    def test_every_cut_of_a_file_is_refused(self):
        mesh.save(self.path, {"a": np.arange(3, dtype="f4"), "b": np.ones((2, 2), "f2")})
        whole = self.read()
        for length in range(len(whole)):
            with self.assertRaises(mesh.BadTensors):
                mesh.load(self.write(whole[:length]))


class Save(Files):
    def test_writes_the_bytes_that_others_read(self):
        mesh.save(self.path, {"b": np.array([[1, 2]], "f4"), "a": np.array(0.5, "f2")})
        header = b'{"b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"a":{"dtype":"F16","shape":[],"data_offsets":[8,10]}}'
        header += b" " * (-len(header) % 8)
        self.assertEqual(self.read(), made(header, struct.pack("<2f", 1, 2) + struct.pack("<e", 0.5)))
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["a.safetensors"], "nothing else is left")

    def test_comes_back_as_it_was(self):
        class Boxed:
            def __array__(self, dtype=None, copy=None):
                return np.array([4.0, 5.0])

        transposed = np.arange(6, dtype="f4").reshape(2, 3).T
        mesh.save(self.path, {
            "double": np.array([0.1, 2.0]), "big-endian": np.array([1, 2], ">f4"), "transposed": transposed,
            "half": np.array([1.5], "f2"), "counter": np.array(12), "flag": np.array([True]), "list": [1, 2.5],
            "boxed": Boxed(), "empty": np.zeros((0, 3), "f4"), "name with ü": np.zeros(1, "f4"),
        })  # fmt: skip
        loaded = mesh.load(self.path)
        self.assertEqual(loaded["double"].dtype, np.float32)
        np.testing.assert_allclose(loaded["double"], [0.1, 2.0], rtol=1e-7)
        self.assertEqual(loaded["big-endian"].tolist(), [1, 2])
        np.testing.assert_array_equal(loaded["transposed"], transposed)
        self.assertEqual(loaded["half"].dtype, np.float16)
        self.assertEqual((loaded["counter"].shape, float(loaded["counter"])), ((), 12))
        self.assertEqual(loaded["flag"].tolist(), [1])
        self.assertEqual(loaded["list"].tolist(), [1, 2.5])
        self.assertEqual(loaded["boxed"].tolist(), [4, 5])
        self.assertEqual(loaded["empty"].shape, (0, 3))
        self.assertIn("name with ü", loaded)

    def test_what_is_no_model_is_refused_and_leaves_nothing(self):
        mesh.save(self.path, {"a": np.zeros(2, "f4")})
        before = self.read()
        cases = [
            ({"a": np.array(["x"])}, "holds str"),
            ({"a": np.zeros(1, "c8")}, "holds complex64"),
            ({"a": None}, "holds object"),
            ({7: np.zeros(1)}, "7 is none"),
            ({"__metadata__": np.zeros(1)}, "cannot be written"),
            ({"": np.zeros(1)}, "cannot be written"),
            ({f"{n:0256}": np.zeros(1, "f4") for n in range(4096)}, "are allowed"),
        ]
        for tensors, words in cases:
            with self.subTest(words), self.assertRaises(mesh.BadTensors) as raised:
                mesh.save(self.path, tensors)
            self.assertIn(words, str(raised.exception))
        self.assertEqual(self.read(), before)
        self.assertEqual(os.listdir(os.path.dirname(self.path)), ["a.safetensors"])

    def test_a_file_can_be_saved_over_what_is_mapped_from_it(self):
        mesh.save(self.path, {"a": np.arange(1000, dtype="f4")})
        loaded = mesh.load(self.path)
        mesh.save(self.path, {"a": loaded["a"][::-1], "b": loaded["a"]})
        self.assertEqual(mesh.load(self.path)["a"][0], 999)
        self.assertEqual(mesh.load(self.path)["b"][1], 1)

    def test_bfloat16_of_others_is_kept(self):
        bits = np.array([0x3F80, 0xC000], "<u2")

        class Bfloat16:
            """As ml_dtypes has it: a kind that numpy does not know, of two bytes."""

            dtype, shape = types.SimpleNamespace(name="bfloat16"), (2,)

            def __array__(self, dtype=None, copy=None):
                return bits

        mesh.save(self.path, {"a": Bfloat16()})
        self.assertIn(b'"dtype":"BF16"', self.read())
        self.assertEqual(mesh.load(self.path)["a"].tolist(), [1, -2])


if __name__ == "__main__":
    unittest.main()
