"""Logistic regression learns MNIST, with scikit-learn. Each party has its own images, and they stay there.

    mesh submit job.toml
    MESH_TRY=5 MESH_DATA_TRAIN=../../mnist python3 train.py          without a mesh
"""

import gzip

import mesh
import numpy as np
from sklearn.linear_model import SGDClassifier

LR = mesh.param("lr", default=0.01)
IMAGES = mesh.param("images", default=2000)
# So many images of those held back are looked at in a round.
HELD_BACK = 2000


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


def main():
    folder = mesh.data("train")
    images, digits = examples(folder, "train")
    held_back, held_back_digits = (part[:HELD_BACK] for part in examples(folder, "t10k"))
    classes = np.arange(10)
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=LR)
    # Once, so that it knows all digits and has coefficients: a party may have but some of the digits.
    model.partial_fit(np.zeros((10, images.shape[1])), classes, classes=classes)
    model.coef_, model.intercept_ = np.zeros_like(model.coef_), np.zeros_like(model.intercept_)

    for round in mesh.rounds():
        rng = np.random.default_rng([mesh.job.task, round.number])
        weights = round.weights()
        if weights:
            # scikit-learn changes them in place, and counts in float64.
            model.coef_ = weights["coef"].astype(np.float64)
            model.intercept_ = weights["intercept"].astype(np.float64)
            accuracy = model.score(held_back / 255, held_back_digits)
            round.evaluated(examples=len(held_back), metrics={"accuracy": accuracy})

        chosen = rng.permutation(len(images))[:IMAGES]
        model.partial_fit(images[chosen] / 255, digits[chosen])
        weights = {"coef": model.coef_, "intercept": model.intercept_}
        round.submit(weights, examples=len(chosen))


if __name__ == "__main__":
    main()
