"""Returns what it was given times 1 and a little more, so that the upload cannot be left out, as it could not after training."""

import random

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    factor = np.float32(1 + random.random() * 1e-3)
    arrays = ArrayRecord([array * factor for array in msg.content["arrays"].to_numpy_ndarrays()])
    metrics = MetricRecord({"num-examples": 1})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
