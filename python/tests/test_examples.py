"""The examples, run as a task would run them, against a node that is played."""

import importlib.util
import os
import pathlib
import subprocess
import sys
import textwrap
import unittest

import fake
import numpy as np

import mesh

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class Examples(fake.InMesh):
    rounds = 4

    def run_example(self, name, needs):
        if importlib.util.find_spec(needs) is None:
            self.skipTest(f"SKIPPED: {needs} is not installed")
        self.node.joined["params"] = {"images": "1000"}
        environment = {
            **os.environ,
            "MESH_DATA_TRAIN": str(ROOT / "examples" / "mnist"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]),
        }
        folder = ROOT / "examples" / "federated" / name
        told = subprocess.run(
            [sys.executable, "-B", "train.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertEqual(self.node.submitted, 3)
        self.assertEqual([body["examples"] for body in self.node.bodies("submit")], [1000] * 4)
        evaluated = self.node.bodies("evaluated")
        self.assertEqual([body["round"] for body in evaluated], [1, 2, 3])
        self.assertGreater(evaluated[-1]["metrics"]["accuracy"], 0.7)
        self.assertEqual(self.node.asked[-1], ("/v1/done", {}))
        self.assertGreater(len(mesh.load(self.node.tensors / "model-3.safetensors")), 1)

    def test_numpy(self):
        self.run_example("numpy", "numpy")

    def test_torch(self):
        self.run_example("torch", "torch")

    def test_sklearn(self):
        self.run_example("sklearn", "sklearn")

    def test_the_worker_of_the_protocol_speaks_it(self):
        text = (ROOT / "docs" / "worker-protocol.md").read_text()
        lines = text.partition("## A worker of twenty lines")[2].splitlines()
        script = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line))
        self.assertIn("import", script)

        def train(model):
            weights = {"w": [0.0]} if model is None else mesh.load(self.node.tensors / model)
            mesh.save(self.node.tensors / "mine.safetensors", {name: array + np.ones(1) for name, array in weights.items()})
            return "mine.safetensors"

        space = {"train": train}
        try:
            exec(script, space)
        finally:
            space["node"].close()
        self.assertEqual(self.node.submitted, 3)
        self.assertEqual(mesh.load(self.node.tensors / "model-3.safetensors")["w"].tolist(), [4])


if __name__ == "__main__":
    unittest.main()
