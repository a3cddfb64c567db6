"""A network of one hidden layer learns MNIST, with numpy alone. Each party has its own images, and they stay there.

    mesh submit job.toml
    MESH_TRY=5 MESH_DATA_TRAIN=../../mnist python3 train.py          without a mesh
"""

import gzip

import mesh
import numpy as np

HIDDEN = 128
LR = mesh.param("lr", default=0.1)
MOMENTUM = mesh.param("momentum", default=0.9)
BATCH = mesh.param("batch", default=32)
IMAGES = mesh.param("images", default=2000)


def idx(folder, name):
    """An idx file, packed or not: four bytes of which the last is the number of sides, the sides, the values."""
    path = folder / name
    with open(path, "rb") if path.exists() else gzip.open(folder / (name + ".gz")) as file:
        sides = file.read(4)[3]
        shape = np.frombuffer(file.read(4 * sides), ">u4")
        return np.frombuffer(file.read(), np.uint8).reshape(shape)


def examples(folder, which):
    """Images as rows from 0 to 255, and their digits."""
    images, digits = idx(folder, which + "-images-idx3-ubyte"), idx(folder, which + "-labels-idx1-ubyte")
    return images.reshape(len(images), -1), digits


def first_model(rng):
    spread = lambda rows, columns: rng.normal(0, np.sqrt(2 / rows), (rows, columns)).astype(np.float32)  # noqa: E731
    zeros = lambda size: np.zeros(size, np.float32)  # noqa: E731
    return {"w1": spread(784, HIDDEN), "b1": zeros(HIDDEN), "w2": spread(HIDDEN, 10), "b2": zeros(10)}


def forward(model, images):
    """The hidden layer, and how likely each digit is."""
    hidden = np.maximum(images @ model["w1"] + model["b1"], 0)
    scores = hidden @ model["w2"] + model["b2"]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, scores / scores.sum(axis=1, keepdims=True)


def loss_of(likely, digits):
    return -np.log(likely[np.arange(len(digits)), digits] + 1e-9).mean()


def step(model, speed, images, digits):
    """One step of gradient descent with momentum. Changes the model in place."""
    hidden, likely = forward(model, images)
    loss = loss_of(likely, digits)
    wrong = likely.copy()
    wrong[np.arange(len(digits)), digits] -= 1
    wrong /= len(digits)
    back = (wrong @ model["w2"].T) * (hidden > 0)
    slopes = {"w1": images.T @ back, "b1": back.sum(axis=0), "w2": hidden.T @ wrong, "b2": wrong.sum(axis=0)}
    for name, slope in slopes.items():
        speed[name] = MOMENTUM * speed[name] + slope
        model[name] -= LR * speed[name]
    return loss


def main():
    folder = mesh.data("train")
    images, digits = examples(folder, "train")
    held_back, held_back_digits = examples(folder, "t10k")

    for round in mesh.rounds():
        rng = np.random.default_rng([mesh.job.task, round.number])
        # Arrays of our own, to change in place.
        model = round.weights(copy=True)
        if model:
            _, likely = forward(model, held_back / np.float32(255))
            right = (likely.argmax(axis=1) == held_back_digits).mean()
            loss = loss_of(likely, held_back_digits)
            round.evaluated(examples=len(held_back), metrics={"accuracy": right, "loss": loss})
        else:
            model = first_model(rng)

        chosen = rng.permutation(len(images))[:IMAGES]
        speed = {name: np.zeros_like(array) for name, array in model.items()}
        losses = []
        for at in range(0, len(chosen), BATCH):
            batch = chosen[at : at + BATCH]
            losses.append(step(model, speed, images[batch] / np.float32(255), digits[batch]))
            round.progress((at + len(batch)) / len(chosen))
        round.submit(model, examples=len(chosen), metrics={"train-loss": np.mean(losses)})


if __name__ == "__main__":
    main()
