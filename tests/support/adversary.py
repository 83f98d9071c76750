"""Adversarial search over neighbouring data sets: the algorithms' recursions, written out again.

Nothing here is taken from the library. Every function works on a batch of M candidates at once;
arrays start with that axis. A candidate is a flat parameter vector that `decode_*` turns into data
sets, starting points and server messages.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def climb(
    score: Callable[[Array], Array],
    size: int,
    *,
    seed: int,
    population: int = 1000,
    generations: int = 40,
) -> float:
    """Maximise `score` by an evolution strategy on R^size and return the best value found."""
    rng = np.random.default_rng(seed)
    parents = rng.standard_normal((population, size)) * 10.0 ** rng.uniform(-1, 1, (population, 1))
    values = score(parents)
    for _ in range(generations):
        order = np.argsort(-values)[: population // 8]
        chosen = parents[order[rng.integers(0, order.size, population)]]
        partners = parents[order[rng.integers(0, order.size, population)]]
        mixed = np.where(rng.random((population, size)) < 0.8, chosen, partners)
        scales = 10.0 ** rng.uniform(-3, 0.7, (population, 1))
        mask = rng.random((population, size)) < rng.uniform(0.1, 1, (population, 1))
        children = mixed + mask * scales * rng.standard_normal((population, size))
        parents = np.concatenate([parents[order], children])
        values = np.concatenate([values[order], score(children)])
    return float(values.max())


def clip_rows(vectors: Array, bound: float | None, order: int = 2) -> Array:
    """Scale vectors (last axis) down to norm `bound`; None leaves them."""
    if bound is None:
        return vectors
    if order == 1:
        norms = np.abs(vectors).sum(axis=-1, keepdims=True)
    else:
        norms = np.sqrt((vectors**2).sum(axis=-1, keepdims=True))
    return vectors * np.minimum(1.0, bound / np.maximum(norms, 1e-300))


def stretched(parameters: Array) -> Array:
    """Map R to numbers of any magnitude up to about 1e3, keeping signs."""
    return np.sinh(np.clip(2.0 * parameters, -8.0, 8.0))


class Data:
    """b records of M candidates: features (M, b, d) and, for classifiers, labels or targets."""

    def __init__(self, features: Array, targets: Array) -> None:
        self.features = features
        self.targets = targets


def logistic_gradients(data: Data, x: Array) -> Array:
    """Per-example gradients (M, b, d) of log(1 + exp(-y <a, x>)), y the sign of the target."""
    labels = np.sign(data.targets) + (data.targets == 0)
    margins = labels * np.einsum("mbd,md->mb", data.features, x)
    weights = -labels / (1.0 + np.exp(np.clip(margins, -700, 700)))
    return weights[..., None] * data.features


def ridge_gradients(data: Data, x: Array) -> Array:
    """Per-example gradients (M, b, d) of (<a, x> - target)^2."""
    residuals = np.einsum("mbd,md->mb", data.features, x) - data.targets
    return 2.0 * residuals[..., None] * data.features


def softmax_gradients(data: Data, x: Array, classes: int = 2) -> Array:
    """Per-example gradients (M, b, d classes) of softmax cross-entropy, targets rounded to 0..m-1.

    x has shape (M, d classes), read as (M, d, classes).
    """
    count, examples, width = data.features.shape
    weights = x.reshape(count, width, classes)
    logits = np.einsum("mbd,mdk->mbk", data.features, weights)
    logits -= logits.max(axis=-1, keepdims=True)
    shares = np.exp(np.clip(logits, -700, 0))
    shares /= shares.sum(axis=-1, keepdims=True)
    labels = np.mod(np.floor(data.targets), classes).astype(int)
    shares -= np.eye(classes)[labels]
    outer = np.einsum("mbd,mbk->mbdk", data.features, shares)
    return outer.reshape(count, examples, width * classes)


Gradients = Callable[[Data, Array], Array]


def neighbours(
    parameters: Array,
    examples: int,
    width: int,
    row_norm: float | None,
    relation: str = "replace-one",
) -> tuple[Data, Data, Array]:
    """Decode two data sets that differ in record 0, and return the unused parameters.

    Under "add-remove" the second lacks record 0: its features are zero, so that it adds nothing
    to a sum that is divided by the public number of examples.
    """
    per_record = width + 1
    used = (examples + 1) * per_record
    records = parameters[:, :used].reshape(-1, examples + 1, per_record)
    features, targets = records[..., :width], stretched(records[..., width])
    features = clip_rows(stretched(features) if row_norm is None else features, row_norm)
    if relation == "add-remove":
        features[:, examples:] = 0.0
    first = Data(features[:, :examples], targets[:, :examples])
    swapped = np.concatenate([features[:, examples:], features[:, 1:examples]], axis=1)
    others = np.concatenate([targets[:, examples:], targets[:, 1:examples]], axis=1)
    return first, Data(swapped, others), parameters[:, used:]


def mean_gradient(
    gradients: Gradients, data: Data, x: Array, example_clip: float | None, batch_clip: float | None
) -> Array:
    """Mean of the clipped per-example gradients (M, n), clipped again as a whole."""
    each = clip_rows(gradients(data, x), example_clip)
    return clip_rows(each.mean(axis=1), batch_clip)


def fed_pdm_local(
    gradient: Callable[[Array], Array],
    start: Array,
    dual: Array,
    *,
    rho: float,
    step: float,
    local_steps: int,
    ridge: float = 0.0,
) -> Array:
    """Q steps x <- x - eta (g(x) + beta x - lam + rho (x - x0hat)) from x0hat."""
    x = start
    for _ in range(local_steps):
        x = x - step * (gradient(x) + ridge * x - dual + rho * (x - start))
    return x


def fed_pdm_public_gap(
    gradients: Gradients,
    pair: tuple[Data, Data],
    start: Array,
    dual: Array,
    *,
    rho: float,
    step: float,
    local_steps: int,
    example_clip: float | None = None,
    batch_clip: float | None = None,
    ridge: float = 0.0,
) -> Array:
    """|y - y'| of one round with a dual that both sides know: 2 |x - x'|."""
    ends = [
        fed_pdm_local(
            lambda x, data=data: mean_gradient(gradients, data, x, example_clip, batch_clip),
            start,
            dual,
            rho=rho,
            step=step,
            local_steps=local_steps,
            ridge=ridge,
        )
        for data in pair
    ]
    return 2.0 * np.sqrt(((ends[0] - ends[1]) ** 2).sum(axis=-1))


def fed_pdm_private_gap(
    gradients: Gradients,
    pair: tuple[Data, Data],
    starts: Array,
    *,
    rho: float,
    step: float,
    local_steps: int,
    example_clip: float | None = None,
    batch_clip: float | None = None,
) -> Array:
    """|y - y'| in the last of T rounds when each side keeps its own un-noised dual from 0.

    `starts` (M, T, n) are the server's broadcasts x0hat, the same for both.
    """
    uploads = []
    for data in pair:
        dual = np.zeros_like(starts[:, 0])
        x = dual
        for t in range(starts.shape[1]):
            start = starts[:, t]
            x = fed_pdm_local(
                lambda w, data=data: mean_gradient(gradients, data, w, example_clip, batch_clip),
                start,
                dual,
                rho=rho,
                step=step,
                local_steps=local_steps,
            )
            dual = dual + rho * (start - x)
        uploads.append(x - dual / rho)
    return np.sqrt(((uploads[0] - uploads[1]) ** 2).sum(axis=-1))


def fed_plt_gap(
    gradients: Gradients,
    pair: tuple[Data, Data],
    start: Array,
    centre: Array,
    kicks: Array,
    *,
    clip: float,
    ridge: float,
    rho: float,
    step: float,
) -> Array:
    """|w - w'| after Ne steps from a common start, the same noise `kicks` (M, Ne, n) on both."""
    ends = []
    for data in pair:
        w = start
        for j in range(kicks.shape[1]):
            slope = mean_gradient(gradients, data, w, clip, None) + ridge * w + (w - centre) / rho
            w = w - step * slope + kicks[:, j]
        ends.append(w)
    return np.sqrt(((ends[0] - ends[1]) ** 2).sum(axis=-1))


def gfl_gap(
    gradients: Gradients,
    pair: tuple[Data, Data],
    messages: Array,
    *,
    step: float,
    local_steps: int,
    example_clip: float | None,
    batch_clip: float | None,
    shared: Data | None = None,
    order: int = 2,
) -> Array:
    """|psi_T - psi_T'| of a unit whose own state is hidden; `messages` (M, T, n) are public.

    The unit has one agent, or two when `shared` (the other agent's data) is given.
    """
    ends = []
    for data in pair:
        psi = np.zeros_like(messages[:, 0])
        for t in range(messages.shape[1]):
            start = psi + messages[:, t]
            results = []
            for agent in (data,) if shared is None else (data, shared):
                w = start
                for _ in range(local_steps):
                    each = clip_rows(gradients(agent, w), example_clip, order)
                    slope = clip_rows(each.mean(axis=1), batch_clip, order)
                    w = w - step / local_steps * slope
                results.append(w)
            psi = np.mean(results, axis=0)
        ends.append(psi)
    if order == 1:
        return np.abs(ends[0] - ends[1]).sum(axis=-1)
    return np.sqrt(((ends[0] - ends[1]) ** 2).sum(axis=-1))
