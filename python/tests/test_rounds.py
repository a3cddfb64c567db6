"""Rounds, against a node that is played."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import unittest
import warnings
from unittest import mock

import fake
import numpy as np

import mesh
from mesh import _client

try:
    import torch
except ImportError:
    torch = None


def train(steps=None):
    """A script: every round adds one to all weights."""
    seen = []
    for round in mesh.rounds():
        weights = round.weights() or {"w": np.zeros((2, 3), "f4"), "b": np.zeros(1, "f2")}
        seen.append((round.number, round.base, float(weights["w"][0, 0])))
        round.submit({name: array + 1 for name, array in weights.items()}, examples=10, metrics={"loss": 0.5})
        for step in steps or []:
            step()
    return seen


def quiet():
    return contextlib.redirect_stderr(io.StringIO())


class Rounds(fake.InMesh):
    def test_the_model_of_a_round_is_what_the_last_one_made(self):
        self.assertEqual(train(), [(0, None, 0), (1, 0, 1), (2, 1, 2)])
        submit = self.node.bodies("submit")[2]
        self.assertEqual(
            submit, {"round": 2, "update": "out-2.safetensors", "examples": 10, "metrics": {"loss": 0.5}}
        )
        paths = [path for path, _ in self.node.asked if "next" in path]
        self.assertEqual(paths, ["/v1/next", "/v1/next?after=0", "/v1/next?after=1", "/v1/next?after=2"])
        self.assertEqual(self.node.asked[-1], ("/v1/done", {}))

    def test_one_connection_is_kept(self):
        train()
        self.assertEqual((self.node.connections, self.node.joins), (1, 1))

    def test_the_first_round_has_no_model(self):
        round = next(mesh.rounds())
        self.assertEqual((round.number, round.base, round.weights()), (0, None, {}))

    def test_waiting_is_asking_again(self):
        self.node.instead["next"] = [lambda _: (200, {"state": "wait"})] * 3
        self.assertEqual(len(train()), 3)

    def test_a_training_that_is_over_has_no_rounds(self):
        self.node.instead["next"] = [lambda _: (200, {"state": "done"})]
        self.assertEqual(train(), [])

    def test_a_late_update_is_no_error(self):
        self.node.instead["submit"] = [lambda _: (200, {"taken": False, "why": "round 0 is over"})]
        numbers = []
        with quiet() as said:
            for round in mesh.rounds():
                taken = round.submit({"w": np.zeros(1)}, examples=1)
                numbers.append((taken, round.taken, round.why))
                self.node.submitted = round.number if self.node.submitted is None else self.node.submitted
                self.node.tensors.joinpath("model-0.safetensors").touch()
        self.assertEqual(numbers[0], (False, False, "round 0 is over"))
        self.assertEqual([taken for taken, *_ in numbers], [False, True, True])
        self.assertIn("round 0 was not taken: round 0 is over", said.getvalue())
        self.assertIn(("/v1/next?after=0", None), self.node.asked, "it is not trained again")

    def test_one_file_is_used_again_and_again(self):
        big = True
        for round in mesh.rounds():
            round.submit({"w": np.full(1000 if big else 10, round.number, "f4")}, examples=1)
            big = not big
        (first, second, third), inodes = zip(*self.node.files)
        self.assertEqual(len(set(inodes)), 1)
        self.assertLess(second, 200, "no rest of a longer one is left")
        self.assertEqual(first, third)
        left = [name for name in os.listdir(self.node.tensors) if name.startswith("out-")]
        self.assertEqual(left, ["out-2.safetensors"])

    def test_what_an_earlier_worker_left_is_removed(self):
        for name in ("out-7.safetensors", "out-8.safetensors.part", "out-mine.safetensors"):
            self.node.tensors.joinpath(name).write_bytes(b"x")
        train()
        left = sorted(name for name in os.listdir(self.node.tensors) if name.startswith("out-"))
        self.assertEqual(left, ["out-2.safetensors", "out-mine.safetensors"])

    def test_weights_are_read_only_unless_copied(self):
        rounds = mesh.rounds()
        next(rounds).submit({"w": np.zeros(3)}, examples=1)
        round = next(rounds)
        with self.assertRaises(ValueError):
            round.weights()["w"] += 1
        weights = round.weights(copy=True)
        weights["w"] += 1
        self.assertEqual(round.weights()["w"].tolist(), [0, 0, 0])

    def test_what_is_told_about_a_round(self):
        round = next(mesh.rounds())
        round.progress(0)
        round.progress(0.01)
        self.assertEqual(self.node.bodies("progress"), [{"round": 0, "part": 0.0}], "not told twice in a moment")
        with mock.patch.object(mesh, "PROGRESS_PAUSE", 0):
            round.progress(np.float32(0.5))
        self.assertEqual(self.node.bodies("progress")[1], {"round": 0, "part": 0.5})
        round.evaluated(examples=np.int64(7), metrics={"accuracy": np.float32(0.5)})
        self.assertEqual(self.node.bodies("evaluated"), [{"round": 0, "examples": 7, "metrics": {"accuracy": 0.5}}])
        for wrong in (-0.1, 1.1, float("nan")):
            with self.assertRaises(ValueError):
                round.progress(wrong)

    def test_a_round_has_to_be_submitted(self):
        rounds = mesh.rounds()
        next(rounds)
        with self.assertRaisesRegex(mesh.Error, "round 0 was not submitted"):
            next(rounds)

    def test_examples_are_a_whole_number(self):
        round = next(mesh.rounds())
        for wrong in (-1, 0, 1.5):
            with self.assertRaisesRegex(ValueError, "examples is a whole number from 1 on"):
                round.submit({"w": np.zeros(1)}, examples=wrong)
        self.assertEqual(self.node.bodies("submit"), [])

    def test_a_job_that_does_not_train_has_no_rounds(self):
        self.node.joined["kind"] = "plain"
        with self.assertRaisesRegex(mesh.Error, "does not train"):
            next(mesh.rounds())

    def test_a_state_from_the_future_is_an_error(self):
        self.node.instead["next"] = [lambda _: (200, {"state": "dance"})]
        with self.assertRaisesRegex(mesh.Error, "'dance'"):
            next(mesh.rounds())


class Tensors(fake.InMesh):
    """Tensors of PyTorch, played: what is asked of them is what PyTorch has."""

    class Tensor:
        def __init__(self, array, dtype):
            self.array, self.dtype, self.shape, self.asked = array, dtype, array.shape, []

        def detach(self):
            self.asked.append("detach")
            return self

        def cpu(self):
            self.asked.append("cpu")
            return self

        def numpy(self):
            assert self.asked[-2:] == ["detach", "cpu"] and self.dtype != "torch.bfloat16"
            return self.array

        def view(self, dtype):
            return type(self).of_view(self, dtype)

        @classmethod
        def of_view(cls, tensor, dtype):
            view = cls(tensor.array, dtype)
            view.asked = tensor.asked
            return view

    def test_tensors_are_written_from_where_they_are(self):
        weights = {
            "w": self.Tensor(np.array([[1.5, 2]], "f4"), "torch.float32"),
            "half": self.Tensor(np.array([3], "f2"), "torch.float16"),
            "brain": self.Tensor(np.array([0x3F80], "<i2"), "torch.bfloat16"),
            "num_batches_tracked": self.Tensor(np.array(4), "torch.int64"),
        }
        with mock.patch.dict(sys.modules, {"torch": mock.Mock(int16="torch.int16")}):
            next(mesh.rounds()).submit(weights, examples=1)
        path = self.node.tensors / "out-0.safetensors"
        values = {name: array.tolist() for name, array in mesh.load(path).items()}
        self.assertEqual(values, {"w": [[1.5, 2]], "half": [3], "brain": [1], "num_batches_tracked": 4})
        self.assertEqual(mesh.load(path, bfloat16="uint16")["brain"].dtype, np.uint16)


@unittest.skipIf(torch is None, "SKIPPED: PyTorch is not installed")
class Torch(fake.InMesh):
    def test_a_state_dict_goes_and_comes_back(self):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Linear(4, 3, bias=False))
        model[2].to(torch.bfloat16)
        model[1].num_batches_tracked += 12
        rounds = mesh.rounds()
        first = next(rounds)
        self.assertEqual(first.state_dict(), {})
        first.submit(model.state_dict(), examples=1)
        second = next(rounds)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            state = second.state_dict()
        self.assertEqual(state["2.weight"].dtype, torch.bfloat16)
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(state[name].to(tensor.dtype), tensor), name)
        model.load_state_dict(state)
        self.assertEqual(model[1].num_batches_tracked.item(), 12)
        state["0.bias"] += 1
        self.assertFalse(np.array_equal(second.weights()["0.bias"], state["0.bias"].numpy()), "nobody else sees it")


class Broken(fake.InMesh):
    """Connections that break, and nodes that are restarted."""

    def setUp(self):
        super().setUp()
        fake.patch(self, mock.patch.object(_client, "FIRST_PAUSE", 0.01))

    def test_a_request_is_repeated_when_the_connection_breaks(self):
        for call in ("next", "submit", "evaluated", "done"):
            self.node.instead[call] = [lambda _: None]
        for round in mesh.rounds():
            round.evaluated(examples=1, metrics={"loss": round.number})
            round.submit({"w": np.zeros(1)}, examples=1)
        self.assertEqual(self.node.submitted, 2)
        self.assertEqual([body["metrics"]["loss"] for body in self.node.bodies("evaluated")], [0, 0, 1, 2])
        self.assertEqual([body["round"] for body in self.node.bodies("submit")], [0, 0, 1, 2])
        self.assertEqual(self.node.joins, 5, "every connection begins with join")

    def test_a_restarted_node_is_waited_for(self):
        def restart():
            self.node.stop()
            # What the old node still had in hand.
            mesh._node._connection.sock.close()
            threading.Timer(0.15, self.node.start).start()

        once = [restart]
        seen = train(steps=[lambda: once.pop()() if once else None])
        self.assertEqual([number for number, *_ in seen], [0, 1, 2])
        self.assertEqual(self.node.joins, 2)

    def test_a_node_that_is_unwell_is_asked_again(self):
        error = {"error": {"message": "the node is stopping"}}
        self.node.instead["submit"] = [lambda _: (503, error)] * 3
        self.assertEqual(len(train()), 3)
        self.assertEqual(len(self.node.bodies("submit")), 6)

    def test_an_answer_that_is_cut_off_is_asked_for_again(self):
        told = json.dumps({"state": "round", "round": 0, "model": None, "base": None})
        self.node.instead["next"] = [lambda _: (200, fake.Short(told.encode()))]
        self.assertEqual(len(train()), 3)
        self.assertEqual(len(self.node.bodies("next")), 5)

    def test_a_node_that_closes_is_joined_again(self):
        train()
        joins, self.node.closes = self.node.joins, True
        mesh.metrics(1, loss=1)
        self.node.closes = False
        mesh.metrics(2, loss=1)
        self.assertEqual(self.node.joins, joins + 1)
        self.assertEqual([body["step"] for body in self.node.bodies("metrics")], [1, 2])

    def test_patience_ends(self):
        self.node.stop()
        with mock.patch.object(_client.Client.ask, "__defaults__", (None, 0.1, 1.0)):
            began = time.monotonic()
            with self.assertRaisesRegex(mesh.Unreachable, "does not answer"):
                next(mesh.rounds())
            self.assertLess(time.monotonic() - began, 5)

    def test_progress_does_not_wait_for_a_node_that_is_gone(self):
        round = next(mesh.rounds())
        self.node.stop()
        mesh._node._close()
        began = time.monotonic()
        round.progress(0.5)
        self.assertLess(time.monotonic() - began, 5)

    def test_a_silent_node_is_taken_for_dead(self):
        silent = threading.Event()
        self.addCleanup(silent.set)
        self.node.instead["next"] = [lambda _: silent.wait(5) and None]
        node = mesh._here()
        self.assertEqual(node.ask("GET", "/v1/next", silence=0.1)["state"], "round")

    def test_a_forked_process_has_a_connection_of_its_own(self):
        mesh.metrics(1, loss=1)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                mesh.metrics(2, loss=2)
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        mesh.metrics(3, loss=3)
        self.assertEqual([body["step"] for body in self.node.bodies("metrics")], [1, 2, 3])
        self.assertEqual(self.node.connections, 2)

    def test_threads_share_a_connection(self):
        threads = [threading.Thread(target=mesh.metrics, args=(n,), kwargs={"loss": n}) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(body["step"] for body in self.node.bodies("metrics")), list(range(20)))
        self.assertEqual(self.node.connections, 1)


class Refusals(fake.InMesh):
    def test_a_refusal_says_what_the_node_says(self):
        error = {"message": "out-0.safetensors cannot be used", "cause": "tensor \"w\" holds NaN", "try": "a smaller rate"}
        self.node.instead["submit"] = [lambda _: (400, {"error": error})]
        rounds = mesh.rounds()
        round = next(rounds)
        with self.assertRaises(mesh.Refused) as raised:
            round.submit({"w": np.array([np.nan])}, examples=1)
        self.assertEqual(
            str(raised.exception),
            'out-0.safetensors cannot be used\ncause: tensor "w" holds NaN\ntry:   a smaller rate',
        )
        self.assertEqual((raised.exception.status, raised.exception.hint), (400, "a smaller rate"))
        self.assertEqual(next(rounds).number, 0, "whoever catches it has the round again")
        self.assertEqual(self.node.connections, 1)

    def test_a_refusal_without_words_is_one_all_the_same(self):
        for body in (b"", b"no", b'{"error": 7}', b'{"error": {"message": null}}'):
            self.node.instead["metrics"] = [lambda _, body=body: (404, body)]
            with self.assertRaisesRegex(mesh.Refused, "POST /v1/metrics was answered with status 404"):
                mesh.metrics(1, loss=1)

    def test_an_answer_that_is_none_is_an_error(self):
        for body in (b"", b"no", b"[]", b"[" * 10000):
            self.node.instead["metrics"] = [lambda _, body=body: (200, body)]
            with self.assertRaisesRegex(mesh.Error, "was not understood"):
                mesh.metrics(1, loss=1)

    def test_an_endless_answer_is_not_read(self):
        self.node.instead["metrics"] = [lambda _: (200, b" " * (1 << 20) + b"{}")]
        with self.assertRaisesRegex(mesh.Error, "too long"):
            mesh.metrics(1, loss=1)
        mesh.metrics(2, loss=1)

    def test_a_refused_join_is_asked_again_by_the_next_request(self):
        self.node.instead["join"] = [lambda _: (403, {"error": {"message": "who are you?"}})]
        with self.assertRaisesRegex(mesh.Refused, "who are you"):
            mesh.metrics(1, loss=1)
        mesh.metrics(1, loss=1)
        self.assertEqual(self.node.joins, 2)

    def test_another_protocol_is_an_error(self):
        self.node.joined["protocol"] = 2
        with self.assertRaisesRegex(mesh.Error, "speaks protocol 2"):
            next(mesh.rounds())


class Facts(fake.InMesh):
    def test_the_job_is_known(self):
        self.assertEqual((mesh.job.name, mesh.job.party, mesh.job.strategy["mu"]), ("mnist", "clinic-a", 0.01))
        self.assertEqual(self.node.joins, 1)

    def test_parameters_become_what_their_default_is(self):
        self.assertEqual(mesh.param("lr", default=0.1), 0.5)
        self.assertEqual(mesh.param("batch-size", default=1), 32)
        self.assertEqual(mesh.param("batch-size"), "32")
        self.assertEqual(mesh.param("epochs", default=3), 3)
        self.assertIsNone(mesh.param("epochs", default=None))
        more = {"MESH_PARAM_ON": "true", "MESH_PARAM_OFF": "0", "MESH_PARAM_TO": "a/b", "MESH_PARAM_LR": "9"}
        with mock.patch.dict(os.environ, more):
            self.assertIs(mesh.param("on", default=False), True)
            self.assertIs(mesh.param("off", default=True), False)
            self.assertEqual(mesh.param("to", default=pathlib.Path()), pathlib.Path("a/b"))
            self.assertEqual(mesh.param("lr", default=0.1), 0.5, "what the node says goes first")
            with self.assertRaisesRegex(ValueError, "'to' is 'a/b', which is no bool"):
                mesh.param("to", default=True)
        with self.assertRaisesRegex(ValueError, "'lr' is '0.5', which is no int"):
            mesh.param("lr", default=1)
        with self.assertRaises(KeyError) as raised:
            mesh.param("epochs")
        self.assertEqual(
            str(raised.exception),
            "there is no parameter 'epochs'; there is: batch-size, lr\ntry:   write it into [params] of job.toml",
        )

    def test_data_lies_where_the_environment_says(self):
        with mock.patch.dict(os.environ, {"MESH_DATA_TRAIN_SET_2": "/data/t", "MESH_DATA_TEST": "/data/u"}):
            self.assertEqual(mesh.data("train-set.2"), pathlib.Path("/data/t"))
            with self.assertRaises(KeyError) as raised:
                mesh.data("train")
        self.assertEqual(
            str(raised.exception),
            "there is no data called 'train'; there is: test, train_set_2\ntry:   write it into [data] of job.toml",
        )
        self.assertIsInstance(raised.exception, mesh.NotThere)
        self.assertEqual(self.node.joins, 0, "nobody has to be asked")

    def test_metrics_are_numbers_with_names(self):
        mesh.metrics(100, loss=0.5, accuracy=np.float64(0.25))
        mesh.metrics(101, {"val.loss": 1})
        self.assertEqual(self.node.bodies("metrics"), [
            {"step": 100, "metrics": {"loss": 0.5, "accuracy": 0.25}}, {"step": 101, "metrics": {"val.loss": 1.0}},
        ])  # fmt: skip
        with self.assertWarnsRegex(UserWarning, "'loss' is nan"):
            mesh.metrics(102, loss=float("nan"), accuracy=1)
        self.assertEqual(self.node.bodies("metrics")[-1], {"step": 102, "metrics": {"accuracy": 1.0}})
        for wrong in ({"Loss": 1}, {"-a": 1}, {"a b": 1}, {"x" * 64: 1}, {f"m{n}": 1 for n in range(17)}):
            with self.assertRaises(ValueError):
                mesh.metrics(1, wrong)


class Alone(fake.OutOfMesh):
    def test_outside_of_mesh_it_says_how_to_run(self):
        with self.assertRaisesRegex(mesh.Error, r"(?s)outside of mesh.*mesh submit job.toml.*MESH_TRY=3"):
            mesh.rounds()

    def test_a_script_can_be_tried(self):
        with mock.patch.dict(os.environ, {"MESH_TRY": "3"}), quiet() as said:
            self.assertEqual(train(), [(0, None, 0), (1, 0, 1), (2, 1, 2)])
        self.assertEqual(said.getvalue().splitlines()[2], "mesh: round 2: 10 examples, loss 0.5")

    def test_so_many_rounds_as_the_script_says(self):
        numbers = []
        with quiet() as said:
            for round in mesh.rounds(alone=2):
                round.progress(0.5)
                round.evaluated(examples=3, metrics={"accuracy": 0.25})
                round.submit({"w": np.zeros(1)}, examples=1)
                numbers.append(round.number)
        self.assertEqual(numbers, [0, 1])
        self.assertIn("mesh: round 1, of 3: accuracy 0.25", said.getvalue())
        for wrong in ("many", "-1", ""):
            with self.assertRaises(ValueError):
                mesh.rounds(alone=wrong)

    def test_mistakes_are_found_without_a_mesh(self):
        cases = [
            ({"w": np.array([np.nan])}, "'w' holds a value that is no finite number"),
            ({"v": np.zeros(1)}, "'w' is missing"),
            ({"w": np.zeros(2)}, r"'w' has shape \(2,\), and \(1,\) in the model"),
            ({"w": np.zeros(1), "v": np.zeros(1)}, "'v' is not part of the model"),
        ]
        with quiet():
            rounds = mesh.rounds(alone=2)
            next(rounds).submit({"w": np.zeros(1)}, examples=1)
            round = next(rounds)
            for weights, words in cases:
                with self.assertRaisesRegex(mesh.Refused, words):
                    round.submit(weights, examples=1)
            self.assertTrue(round.submit({"w": np.ones(1)}, examples=1))

    def test_the_rest_works_without_a_mesh_too(self):
        with mock.patch.dict(os.environ, {"MESH_PARAM_LR": "0.25"}), quiet() as said:
            self.assertEqual(mesh.param("lr", default=0.1), 0.25)
            mesh.metrics(5, loss=0.125)
            self.assertEqual(mesh.job.party, "alone")
        self.assertEqual(said.getvalue(), "mesh: step 5: loss 0.125\n")
        with self.assertRaisesRegex(mesh.NotThere, r"there is: none\ntry:   set MESH_DATA_TRAIN=DIR"):
            mesh.data("train")

    def test_the_package_is_there_without_numpy(self):
        script = "import sys; sys.modules['numpy'] = None; import mesh; print(mesh.param('lr', 0.5))\n"
        script += "try: mesh.save('x', {'a': [1]})\nexcept mesh.Error as error: print(error)"
        package = pathlib.Path(mesh.__file__).parent.parent
        told = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": str(package)}, capture_output=True, text=True, check=True
        )
        self.assertEqual(told.stdout.splitlines()[0], "0.5")
        self.assertIn("numpy is not installed", told.stdout)


if __name__ == "__main__":
    unittest.main()
