"""The digits of scikit-learn, dealt so that every hospital sees two or three of the ten."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

CLASSES = 10


def place(context):
    """Return which hospital of how many this node is."""
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


@cache
def digits():
    """Return train and test images with pixels in [0, 1], and their labels."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)


def hospital(number, count):
    """Return the training images and labels of one hospital."""
    images, _, labels, _ = digits()
    shards = np.array_split(np.argsort(labels, kind="stable"), 2 * count)
    dealt = np.random.default_rng(0).permutation(2 * count).reshape(count, 2)
    mine = np.concatenate([shards[shard] for shard in dealt[number]])
    return images[mine], labels[mine]
