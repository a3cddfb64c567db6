"""FedAvg over such clients. Writes a line at the end of every round."""

import json
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes, rounds = int(config["nodes"]), int(config["rounds"])
    draw = np.random.default_rng(0)
    values = int(config["megabytes"]) * 25_000
    arrays = ArrayRecord([draw.standard_normal(values, dtype=np.float32) for _ in range(10)])
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(0.1)
    with open(config["out"], "a", buffering=1) as out:

        def evaluate(number, _arrays):
            out.write(json.dumps({"round": number, "at": time.time()}) + "\n")
            return MetricRecord({"x": 0.0})

        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, train_config=ConfigRecord({}), evaluate_fn=evaluate)
        out.write(json.dumps({"round": None, "at": time.time()}) + "\n")
