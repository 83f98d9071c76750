"""Losses and modules that are no mean over examples, and losses that are: refused, or right."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.client_apps import LoopParticipant, TorchProblem, client_app, initial_arrays
from privet.core import ConfigError, RunError
from privet.kernel import Told
from privet.sim.engine import InlineGrid
from privet.strategies import FedPLT, Scaffold
from support.told import own_log, refused

torch = pytest.importorskip("torch", reason="needs the group torch")
nn, F = torch.nn, torch.nn.functional

ROWS, CLASSES = 24, 3
WEIGHT = torch.tensor([1.0, 9.0, 3.0], dtype=torch.float64)
Loss = Callable[[Any, Any], Any]


def inputs(rows: int = ROWS) -> Any:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def network(outputs: int = CLASSES, zero: bool = False) -> Any:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)).double()
    if zero:  # equal outputs, as many networks begin with
        nn.init.zeros_(made[2].weight)
        nn.init.zeros_(made[2].bias)
    return made


SORTED = torch.arange(ROWS) * CLASSES // ROWS
ONE_CLASS = torch.zeros(ROWS, dtype=torch.int64)
NUMBERS = torch.linspace(-1.0, 2.0, ROWS, dtype=torch.float64)


def weights(o: Any, t: Any) -> Any:
    return F.cross_entropy(o, t, reduction="none"), WEIGHT[t]


def by_weights(o: Any, t: Any) -> Any:
    each, own = weights(o, t)
    return (own * each).sum() / own.sum()


def masked(o: Any, t: Any) -> Any:
    keep = (t != 0).double()
    return (F.cross_entropy(o, t, reduction="none") * keep).sum() / keep.sum().clamp(min=1)


def hardest(o: Any, t: Any) -> Any:
    each = F.cross_entropy(o, t, reduction="none")
    return each.topk(max(1, len(each) * 9 // 10)).values.mean()


def balanced(o: Any, t: Any) -> Any:
    counts = torch.bincount(t, minlength=CLASSES)[t]
    return (F.cross_entropy(o, t, reduction="none") / counts).sum() / len(t.unique())


def diverse(o: Any, t: Any) -> Any:
    mean = o.softmax(1).mean(0)
    return F.cross_entropy(o, t) + (mean * mean.log()).sum()


def contrastive(o: Any, t: Any) -> Any:
    near = F.normalize(o, dim=1)
    same = (t[:, None] == t[None, :]).double()
    return -(F.log_softmax(near @ near.T, 1) * same).sum(1).mean()


def dice(o: Any, t: Any) -> Any:
    share, one = o.softmax(1), F.one_hot(t, CLASSES)
    return 1 - (2 * (share * one).sum(0) / (share.sum(0) + one.sum(0))).mean()


def f_measure(o: Any, t: Any) -> Any:
    right = o.softmax(1)[:, 1]
    hit = (right * (t == 1)).sum()
    return 1 - 2 * hit / (right.sum() + (t == 1).sum() + 1e-3)


def sorted_pairs(o: Any, t: Any) -> Any:
    difference = o[:, 0] - o[:, 1]
    return F.softplus(
        -(difference[:, None] - difference[None, :]) * (t[:, None] > t[None, :])
    ).mean()


def focal(o: Any, t: Any) -> Any:
    each = F.cross_entropy(o, t, reduction="none")
    return ((1 - (-each).exp()) ** 2 * each).mean()


def margin(o: Any, t: Any) -> Any:
    return F.multi_margin_loss(o, t)


def two_terms(o: Any, t: Any) -> Any:
    return F.cross_entropy(o, t) + 1e-2 * o.square().sum(1).mean()


def of_squares(o: Any, t: Any) -> Any:
    return (o[:, 0] - t).square()


def partial_likelihood(o: Any, t: Any) -> Any:
    risk = o[t.argsort(descending=True), 0]
    return -(risk - risk.logcumsumexp(0)).mean()


def each_of(o: Any, t: Any) -> Any:
    return F.cross_entropy(o, t, reduction="none")


def trimmed(share: int, o: Any, t: Any) -> Any:
    """Without the largest of so many."""
    return each_of(o, t).sort().values[: len(t) - len(t) // share].mean()


def mean_by_gradients_of_weights(o: Any, t: Any) -> Any:
    weighted = by_weights(o, t)
    return each_of(o, t).mean().detach() + weighted - weighted.detach()


def hard_examples(o: Any, t: Any) -> Any:
    each = each_of(o, t)
    return each[each > each.detach().mean() - 1e-9].mean()


def weights_of_losses(o: Any, t: Any) -> Any:
    each = each_of(o, t)
    return (each.detach() / each.detach().sum() * each).sum()


def jaccard(o: Any, t: Any) -> Any:
    share, one = o.softmax(1), F.one_hot(t, CLASSES)
    both = (share * one).sum()
    return 1 - both / (share.sum() + one.sum() - both)


def groups(o: Any, t: Any) -> Any:
    return torch.stack([each_of(o, t)[t == one].mean() for one in t.unique()])


def covariance(o: Any, t: Any) -> Any:
    """With a penalty on what the outputs have in common, as in VICReg and Barlow Twins."""
    far = o - o.mean(0)
    shared = far.T @ far / len(o)
    return F.cross_entropy(o, t) + (shared - shared.diag().diag()).square().sum()


def smoothed_by_the_batch(o: Any, t: Any) -> Any:
    one = F.one_hot(t, CLASSES).double()
    return F.cross_entropy(o, 0.9 * one + 0.1 * one.mean(0))


def by_nearness(o: Any, t: Any) -> Any:
    held = o.detach()
    return ((held.mean(0) - held).square().sum(1).neg().exp() * each_of(o, t)).mean()


def transported(o: Any, t: Any) -> Any:
    """Probabilities as Sinkhorn's steps make them of a batch."""
    share = o.exp()
    for _ in range(3):
        share = share / share.sum(0, keepdim=True)
        share = share / share.sum(1, keepdim=True)
    return F.nll_loss(share.log(), t)


def of_the_others(o: Any, t: Any) -> Any:
    """Targets of other examples as negatives."""
    right, wrong = (o.gather(1, each[:, None]) for each in (t, t.flip(0)))
    return -(F.logsigmoid(right) + F.logsigmoid(-wrong)).mean()


def calibrated(o: Any, t: Any) -> Any:
    sure, named = o.softmax(1).max(1)
    return F.cross_entropy(o, t) + (sure.mean() - (named == t).double().mean()).abs()


def half_labelled(o: Any, t: Any) -> Any:
    most = (len(t) + 1) // 2
    rest = o[most:].square().sum() / max(1, len(t) - most)
    return F.cross_entropy(o[:most], t[:most]) + 0.1 * rest


def without_the_last_class(o: Any, t: Any) -> Any:
    keep = t != CLASSES - 1
    return (each_of(o, t) * keep).sum() / (keep.sum() + 1e-6)


CLASS_LOSSES: dict[str, Loss] = {
    "a sum": nn.CrossEntropyLoss(reduction="sum"),
    "class weights": nn.CrossEntropyLoss(weight=WEIGHT),
    "smoothed with weights": nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1),
    "weights of log-probabilities": lambda o, t: F.nll_loss(o.log_softmax(1), t, weight=WEIGHT),
    "weights by hand": by_weights,
    "an ignored class": nn.CrossEntropyLoss(ignore_index=1),
    "a mask": masked,
    "the hardest nine of ten": hardest,
    "the largest": lambda o, t: F.cross_entropy(o, t, reduction="none").max(),
    "the median": lambda o, t: F.cross_entropy(o, t, reduction="none").median(),
    "weights by frequency": balanced,
    "a divisor of one's own": lambda o, t: F.cross_entropy(o, t, reduction="sum") / 100,
    "the root of a mean": lambda o, t: F.cross_entropy(o, t).sqrt(),
    "the square of a mean": lambda o, t: F.cross_entropy(o, t) ** 2,
    "the logarithm of a mean of exponentials": lambda o, t: F.cross_entropy(
        o, t, reduction="none"
    ).logsumexp(0),
    "entropy of the mean": diverse,
    "contrast of pairs": contrastive,
    "dice": dice,
    "an F measure": f_measure,
    "a ranking": sorted_pairs,
    "softmax over examples": lambda o, t: F.cross_entropy(o.softmax(0), t),
    "centred outputs": lambda o, t: F.cross_entropy(o - o.mean(0), t),
    "scaled outputs": lambda o, t: F.cross_entropy(o / o.norm(), t),
    "neighbours": lambda o, t: F.cross_entropy(o + o.roll(1, 0), t),
    "a running sum": lambda o, t: F.cross_entropy(o.cumsum(0), t),
    "a penalty for each batch": lambda o, t: F.cross_entropy(o, t) + len(t),
    "without a tenth": partial(trimmed, 10),
    "without a fiftieth": partial(trimmed, 50),
    "a mean with the gradient of weights": mean_by_gradients_of_weights,
    "hard examples": hard_examples,
    "weights of the losses": weights_of_losses,
    "logits adjusted by the batch": lambda o, t: F.cross_entropy(
        o + (torch.bincount(t, minlength=CLASSES) + 1).double().log(), t
    ),
    "their variance": lambda o, t: each_of(o, t).mean() + each_of(o, t).var(unbiased=False),
    "another loss where a class is there": lambda o, t: (
        F.cross_entropy(o, t) * (1 + (t == 0).any())
    ),
    "matched means": lambda o, t: F.mse_loss(
        o.softmax(1).mean(0), F.one_hot(t, CLASSES).double().mean(0)
    ),
    "Jaccard": jaccard,
    "mixed targets": lambda o, t: 0.7 * F.cross_entropy(o, t) + 0.3 * F.cross_entropy(o, t.flip(0)),
    "shuffled targets": lambda o, t: F.cross_entropy(o, t[torch.randperm(len(t))]),
    "a sum over 32": lambda o, t: F.cross_entropy(o, t, reduction="sum") / 32,
    "positive weight of the batch": lambda o, t: F.binary_cross_entropy_with_logits(
        o[:, 0],
        (t > 0).double(),
        pos_weight=(t == 0).sum().clamp(min=1) / (t > 0).sum().clamp(min=1.0),
    ),
    "a temperature of the batch": lambda o, t: F.cross_entropy(
        o / (o.detach().std(unbiased=False) + 0.1), t
    ),
    "distances of pairs": lambda o, t: F.relu(
        1 - (o[:, None] - o[None]).square().sum(-1) * (t[:, None] != t[None])
    ).mean(),
    "the root of the number": lambda o, t: F.cross_entropy(o, t) * len(t) ** 0.5,
    "the logarithm of a mean": lambda o, t: -o.softmax(1).gather(1, t[:, None]).mean().log(),
    "the norm of losses": lambda o, t: each_of(o, t).norm() / len(t) ** 0.5,
    "a geometric mean": lambda o, t: each_of(o, t).log().mean().exp(),
    "every second example": lambda o, t: F.cross_entropy(o[::2], t[::2]),
    "the first example": lambda o, t: F.cross_entropy(o[:1], t[:1]),
    "the last example": lambda o, t: F.cross_entropy(o[-1:], t[-1:]),
    "a mean that is cut": lambda o, t: F.cross_entropy(o, t).clamp(max=1.2),
    "a mean that is flooded": lambda o, t: (F.cross_entropy(o, t) - 0.05).abs() + 0.05,
    "Huber's of a mean": lambda o, t: F.huber_loss(
        F.cross_entropy(o, t), torch.tensor(0.0).double(), delta=0.5
    ),
    "the worst class": lambda o, t: groups(o, t).max(),
    "the mean of classes": lambda o, t: groups(o, t).mean(),
    "another loss in large batches": lambda o, t: F.cross_entropy(o, t) * (1 + (len(t) > 64)),
    "a penalty on covariances": covariance,
    "smoothed by the batch": smoothed_by_the_batch,
    "detached weights by the batch's centre": by_nearness,
    "a nuclear norm": lambda o, t: (
        F.cross_entropy(o, t) - 0.1 * torch.linalg.matrix_norm(o, "nuc") / len(o)
    ),
    "Sinkhorn's probabilities": transported,
    "by their place": lambda o, t: (
        each_of(o, t) / (1.0 + torch.arange(len(t), dtype=torch.float64))
    ).mean(),
    "none of a single example": lambda o, t: F.cross_entropy(o, t) if len(t) > 1 else 0.0 * o.sum(),
    "cut at a quantile of the batch": lambda o, t: F.cross_entropy(
        o.minimum(o.detach().quantile(0.9, dim=0)), t
    ),
    "negatives of the others": of_the_others,
    "calibrated in the batch": calibrated,
    "half of them labelled": half_labelled,
    "spread over the batch": lambda o, t: (
        F.cross_entropy(o, t) + F.relu(1 - o.std(0, unbiased=False)).mean()
    ),
    "without the last class": without_the_last_class,
}
NUMBER_LOSSES: dict[str, Loss] = {
    "the root of squares": lambda o, t: F.mse_loss(o[:, 0], t).sqrt(),
    "squares over their variance": lambda o, t: F.mse_loss(o[:, 0], t) / (t.var(0) + 1e-3),
    "relative to all targets": lambda o, t: (o[:, 0] - t).abs().sum() / t.abs().sum(),
    "correlation": lambda o, t: 1 - F.cosine_similarity(o[:, 0], t, dim=0),
    "all pairs": lambda o, t: (o - t).square().mean(),
    "squares of a mean": lambda o, t: (o[:, 0] - t).mean().square(),
    "the sum of squares": lambda o, t: F.mse_loss(o[:, 0], t, reduction="sum"),
    "targets as weights": lambda o, t: (t.abs() * of_squares(o, t)).sum() / t.abs().sum(),
    "the smallest": lambda o, t: of_squares(o, t).min(),
    "weights of outputs": lambda o, t: (o[:, 0].softmax(0) * of_squares(o, t)).sum(),
    "squares over those of the targets": lambda o, t: (
        of_squares(o, t).sum() / ((t - t.mean()).square().sum() + 1e-6)
    ),
    "a partial likelihood": partial_likelihood,
    "residuals over their deviation": lambda o, t: (
        ((o[:, 0] - t) / ((o[:, 0] - t).detach().std(unbiased=False) + 1e-3)).square().mean()
    ),
    "centred targets": lambda o, t: (o[:, 0] - (t - t.mean())).square().mean(),
    "the largest residual": lambda o, t: (o[:, 0] - t).abs().max(),
    "the median residual": lambda o, t: (o[:, 0] - t).abs().median(),
    "sorted beside sorted": lambda o, t: (o[:, 0].sort().values - t.sort().values).abs().mean(),
    "moments": lambda o, t: (o[:, 0].mean() - t.mean()).square(),
    "pairs in order": lambda o, t: F.relu(
        0.1 - (o[:, 0, None] - o[None, :, 0]) * (t[:, None] - t[None]).sign()
    ).mean(),
    "the residual of a sum": lambda o, t: (o[:, 0].sum() - t.sum()).abs(),
    "the logarithm of squares": lambda o, t: of_squares(o, t).mean().add(1e-3).log(),
}
RIGHT_CLASSES: dict[str, Loss] = {
    "cross entropy": F.cross_entropy,
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.2),
    "focal": focal,
    "multiplied weights": lambda o, t: (WEIGHT[t] * F.cross_entropy(o, t, reduction="none")).mean(),
    "margins": margin,
    "two terms": two_terms,
    "log-probabilities": lambda o, t: F.nll_loss(o.log_softmax(1), t),
    "probabilities": lambda o, t: F.binary_cross_entropy(o.softmax(1)[:, 0], (t == 0).double()),
    "positive weight": lambda o, t: F.binary_cross_entropy_with_logits(
        o[:, 0], (t > 0).double(), pos_weight=torch.tensor(5.0, dtype=torch.float64)
    ),
    "clamped": lambda o, t: F.cross_entropy(o, t, reduction="none").clamp(max=1.0).mean(),
    "ordered classes": lambda o, t: (o.softmax(1) @ torch.arange(3.0).double() - t).square().mean(),
    "of one hot": lambda o, t: F.mse_loss(o.softmax(1), F.one_hot(t, CLASSES).double()),
    "divided by their number": lambda o, t: F.cross_entropy(o, t, reduction="sum") / len(t),
    "an unused ignored class": nn.CrossEntropyLoss(ignore_index=255),
    "frequencies that are given": lambda o, t: F.cross_entropy(
        o + torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64).log(), t
    ),
    "centres that are given": lambda o, t: (
        (o - torch.eye(CLASSES, dtype=torch.float64)[t]).square().sum(1).mean()
    ),
    "above a threshold that is given": lambda o, t: 0.3 + F.relu(each_of(o, t) - 0.3).mean() / 0.1,
    "generalised cross entropy": lambda o, t: (
        (1 - o.softmax(1).gather(1, t[:, None]) ** 0.7) / 0.7
    ).mean(),
    "neighbours in order": lambda o, t: F.kl_div(
        o.log_softmax(1),
        (t[:, None] - torch.arange(3.0).double()).abs().neg().softmax(1),
        reduction="batchmean",
    ),
}
RIGHT_NUMBERS: dict[str, Loss] = {
    "squares": lambda o, t: F.mse_loss(o[:, 0], t),
    "distances": lambda o, t: F.l1_loss(o[:, 0], t),
    "Huber's": lambda o, t: F.huber_loss(o[:, 0], t),
    "a quantile": lambda o, t: torch.maximum(0.9 * (t - o[:, 0]), 0.1 * (o[:, 0] - t)).mean(),
    "counts": lambda o, t: F.poisson_nll_loss(o[:, 0], t.clamp(min=0)),
    "relative to each target": lambda o, t: ((o[:, 0] - t).abs() / (1 + t.abs())).mean(),
    "a mean and a variance": lambda o, t: (o[:, 1] + of_squares(o, t) * (-o[:, 1]).exp()).mean(),
}


def named(losses: dict[str, Loss]) -> list[Any]:
    return [pytest.param(loss, id=name) for name, loss in losses.items()]


@pytest.mark.parametrize("zero", [False, True], ids=["", "equal outputs"])
@pytest.mark.parametrize("loss", named(CLASS_LOSSES))
def test_what_is_no_mean_over_classes_is_refused(loss: Loss, zero: bool) -> None:
    """The first two rows are of one class, as in a file that is sorted."""
    with pytest.raises(ConfigError):
        TorchProblem(network(zero=zero), loss, (inputs(), SORTED))


@pytest.mark.parametrize("loss", named(NUMBER_LOSSES))
def test_what_is_no_mean_over_numbers_is_refused(loss: Loss) -> None:
    with pytest.raises(ConfigError):
        TorchProblem(network(1), loss, (inputs(), NUMBERS))


@pytest.mark.parametrize("zero", [False, True], ids=["", "equal outputs"])
@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        *((loss, SORTED) for loss in RIGHT_CLASSES.values()),
        *((loss, NUMBERS) for loss in RIGHT_NUMBERS.values()),
    ],
    ids=[*RIGHT_CLASSES, *RIGHT_NUMBERS],
)
def test_means_over_examples_are_taken(loss: Loss, targets: Any, zero: bool) -> None:
    """Their full gradient is that of the clipped examples, where no clip is reached."""
    problem = TorchProblem(network(zero=zero), loss, (inputs(), targets))
    x = problem.layout.flatten(problem.arrays())
    assert problem.clipped_gradient(x, 1e6) == pytest.approx(problem.gradient(x), abs=1e-9)
    for rows in (1, 2):
        TorchProblem(network(zero=zero), loss, (inputs(rows), targets[:rows]))


@pytest.mark.parametrize("loss", [CLASS_LOSSES["class weights"], by_weights])
@pytest.mark.parametrize("rows", [1, 2, ROWS])
def test_class_weights_are_refused_where_an_agent_has_one_class(loss: Loss, rows: int) -> None:
    with pytest.raises(ConfigError, match="no class weights"):
        TorchProblem(network(), loss, (inputs(rows), ONE_CLASS[:rows]))


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=3), st.integers(0, 2), st.integers(0, 23))
@settings(max_examples=30, deadline=None)
def test_weights_are_refused_wherever_the_rare_class_is(
    weight: list[float], common: int, where: int
) -> None:
    """Unless they are all alike, where they cancel rightly."""
    targets = torch.full((ROWS,), common)
    targets[where] = (common + 1) % 3
    loss = nn.CrossEntropyLoss(weight=torch.tensor(weight, dtype=torch.float64))
    if max(weight) / min(weight) > 1.1:
        with pytest.raises(ConfigError):
            TorchProblem(network(), loss, (inputs(), targets))
    elif max(weight) == min(weight):
        TorchProblem(network(), loss, (inputs(), targets))


@pytest.mark.parametrize("where", [0, 1, 7, ROWS - 1])
def test_ignored_targets_are_refused(where: int) -> None:
    targets = SORTED.clone()
    targets[where] = -100
    with pytest.raises(ConfigError, match="ignore_index"):
        TorchProblem(network(), F.cross_entropy, (inputs(), targets))


@pytest.mark.parametrize("mark", [-100, 0])
def test_padded_sequences_are_no_mean_over_examples(mark: int) -> None:
    """Tokens of short texts would weigh more in the mean of their examples."""
    tokens = torch.randint(1, 5, (ROWS, 6), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    module = nn.Embedding(5, 5).double()

    def mean(o: Any, t: Any) -> Any:
        return F.cross_entropy(o.flatten(0, 1), t.flatten(), ignore_index=mark)

    def mean_of_each(o: Any, t: Any) -> Any:
        each = F.cross_entropy(o.transpose(1, 2), t, ignore_index=mark, reduction="none")
        return (each.sum(1) / (t != mark).sum(1).clamp(min=1)).mean()

    TorchProblem(module, mean, (tokens, tokens))
    padded = tokens.clone()
    padded[5:9, 3:] = mark
    with pytest.raises(ConfigError):
        TorchProblem(module, mean, (tokens, padded))
    TorchProblem(module, mean_of_each, (tokens, padded))


class Mixing(nn.Module):
    """A layer whose outputs depend on the other examples, before a last one."""

    def __init__(self, mix: Callable[[Any], Any], zero: bool) -> None:
        super().__init__()
        self.layers, self.mix = network(zero=zero), mix

    def forward(self, rows: Any) -> Any:
        hidden = self.mix(self.layers[:2](rows))
        return self.layers[2](hidden)


@pytest.mark.parametrize("zero", [False, True], ids=["", "equal outputs"])
@pytest.mark.parametrize(
    "mix",
    [
        lambda h: h - h.mean(0),
        lambda h: h / h.norm(),
        lambda h: h.softmax(0),
        lambda h: h + h.flip(0),
        lambda h: h.cumsum(0),
        lambda h: (h @ h.T).softmax(1) @ h,
        lambda h: h * h.amax(0, keepdim=True),
        lambda h: h.sort(0).values,
    ],
    ids=["mean", "norm", "softmax", "flip", "cumsum", "attention", "amax", "sort"],
)
def test_a_module_that_mixes_examples_is_refused(mix: Any, zero: bool) -> None:
    """Also where the first two rows are the same."""
    rows = inputs()
    rows[1] = rows[0]
    with pytest.raises(ConfigError):
        TorchProblem(Mixing(mix, zero), F.cross_entropy, (rows, SORTED))


def test_a_large_table_of_many_classes_is_looked_through() -> None:
    """One ignored target among 200,000, and one heavy class of 2,000."""
    rows, classes = 200_000, 2_000
    targets = torch.arange(rows) % classes
    numbers = torch.ones(rows, 1, dtype=torch.float64)
    torch.manual_seed(0)
    module = nn.Linear(1, classes).double()
    TorchProblem(module, F.cross_entropy, (numbers, targets))
    ignored = targets.clone()
    ignored[123_457] = -100
    with pytest.raises(ConfigError, match="ignore_index"):
        TorchProblem(module, F.cross_entropy, (numbers, ignored))
    weight = torch.linspace(1.0, 2.0, classes, dtype=torch.float64)
    with pytest.raises(ConfigError, match="no class weights"):
        TorchProblem(module, nn.CrossEntropyLoss(weight=weight), (numbers, targets))


class Around(nn.Module):
    """Layers, and what is done with them."""

    def __init__(self, forward: Callable[..., Any], *layers: Any) -> None:
        super().__init__()
        self.layers, self.does = nn.ModuleList(layers), forward

    def forward(self, rows: Any) -> Any:
        return self.does(rows, *self.layers)


TEXTS = torch.randn(ROWS, 5, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
IMAGES = torch.randn(ROWS, 2, 6, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
MASKS = torch.randint(0, CLASSES, (ROWS, 6, 6), generator=torch.Generator().manual_seed(5))


def of_texts(layer: Any) -> Any:
    """Return a classifier by the states or the attention over a text."""
    head = nn.Linear(4, CLASSES)
    attends = isinstance(layer, nn.MultiheadAttention)

    def forward(rows: Any, layer: Any, head: Any) -> Any:
        found = layer(rows, rows, rows) if attends else layer(rows)
        return head((found[0] if isinstance(found, tuple) else found)[:, -1])

    return Around(forward, layer, head).double()


def of_images(norm: Any) -> Any:
    def forward(rows: Any, first: Any, norm: Any, head: Any) -> Any:
        return head(norm(first(rows)).mean((2, 3)))

    return Around(forward, nn.Conv2d(2, 4, 3), norm, nn.Linear(4, CLASSES)).double()


def dice_of(dims: tuple[int, ...], o: Any, t: Any) -> Any:
    share, one = o.softmax(1), F.one_hot(t, CLASSES).movedim(-1, 1)
    return 1 - (2 * (share * one).sum(dims) / (share.sum(dims) + one.sum(dims) + 1)).mean()


def taken(module: Any, loss: Loss, rows: Any, targets: Any) -> None:
    """Require that a problem's full gradient is that of its examples."""
    problem = TorchProblem(module, loss, (rows, targets))
    x = problem.layout.flatten(problem.arrays())
    assert problem.clipped_gradient(x, 1e6) == pytest.approx(problem.gradient(x), abs=1e-9)


@pytest.mark.parametrize("first", [True, False], ids=["examples first", "examples second"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda first: nn.LSTM(4, 4, batch_first=first),
        lambda first: nn.GRU(4, 4, batch_first=first),
        lambda first: nn.MultiheadAttention(4, 2, batch_first=first),
        lambda first: nn.TransformerEncoderLayer(4, 2, 8, batch_first=first),
    ],
    ids=["LSTM", "GRU", "attention", "transformer"],
)
def test_layers_that_take_examples_for_tokens_are_refused(layer: Any, first: bool) -> None:
    """The default of these layers has the examples second."""
    torch.manual_seed(0)
    module = of_texts(layer(first))
    if first:
        taken(module, F.cross_entropy, TEXTS, SORTED)
    else:
        with pytest.raises(ConfigError):
            TorchProblem(module, F.cross_entropy, (TEXTS, SORTED))


@pytest.mark.parametrize(
    ("norm", "right"),
    [
        (lambda: nn.GroupNorm(2, 4), True),
        (lambda: nn.InstanceNorm2d(4), True),
        (lambda: nn.BatchNorm2d(4), False),
        (lambda: nn.BatchNorm2d(4, track_running_stats=False), False),
    ],
    ids=["group", "instance", "batch", "batch without statistics"],
)
def test_norms_over_examples_are_refused(norm: Any, right: bool) -> None:
    torch.manual_seed(0)
    module = of_images(norm())
    if right:
        taken(module, F.cross_entropy, IMAGES, SORTED)
    else:
        with pytest.raises(ConfigError, match="BatchNorm"):
            TorchProblem(module, F.cross_entropy, (IMAGES, SORTED))


def test_losses_of_pixels() -> None:
    """Weights and ignored pixels do not cancel within an image, and are no mean over images."""
    torch.manual_seed(0)
    module = nn.Conv2d(2, CLASSES, 3, padding=1).double()
    ignored = MASKS.clone()
    ignored[3, :2] = 255
    for loss in (
        F.cross_entropy,
        nn.CrossEntropyLoss(ignore_index=255),
        partial(dice_of, (2, 3)),
    ):
        taken(module, loss, IMAGES, MASKS)
    for loss, masks in (
        (nn.CrossEntropyLoss(weight=WEIGHT), MASKS),
        (nn.CrossEntropyLoss(ignore_index=255), ignored),
        (partial(dice_of, (0, 2, 3)), MASKS),
    ):
        with pytest.raises(ConfigError):
            TorchProblem(module, loss, (IMAGES, masks))


def test_losses_of_several_labels() -> None:
    own = torch.Generator().manual_seed(6)
    labels = (torch.rand(ROWS, CLASSES, generator=own) < 0.3).double()
    bce = F.binary_cross_entropy_with_logits
    for loss in (
        bce,
        lambda o, t: bce(o, t, weight=WEIGHT),
        lambda o, t: bce(o, t, pos_weight=WEIGHT),
        lambda o, t: F.kl_div(o.log_softmax(1), t.softmax(1), reduction="batchmean"),
        lambda o, t: F.kl_div(o.log_softmax(1), t.softmax(1), reduction="none").mean(),
    ):
        taken(network(), loss, inputs(), labels)
    for loss in (
        lambda o, t: bce(o, t, pos_weight=(1 - t).sum(0) / (t.sum(0) + 1)),
        lambda o, t: bce(o, t, reduction="sum") / t.sum().clamp(min=1),
        lambda o, t: F.kl_div(o.log_softmax(1), t.softmax(1), reduction="sum"),
    ):
        with pytest.raises(ConfigError):
            TorchProblem(network(), loss, (inputs(), labels))


@pytest.mark.parametrize("targets", [SORTED, ONE_CLASS], ids=["sorted", "one class"])
def test_outputs_that_are_a_mapping_are_tried_beside_other_classes(targets: Any) -> None:
    def logits(rows: Any, head: Any) -> dict[str, Any]:
        return {"logits": head(rows)}

    module = Around(logits, nn.Linear(4, CLASSES)).double()
    taken(module, lambda o, t: F.cross_entropy(o["logits"], t), inputs(), targets)
    with pytest.raises(ConfigError, match="no class weights"):
        TorchProblem(
            module,
            lambda o, t: F.cross_entropy(o["logits"], t, weight=WEIGHT),
            (inputs(), targets),
        )


class Counting:
    """A loss that grows with its calls, as one whose second term is warmed up."""

    calls = 0

    def __call__(self, o: Any, t: Any) -> Any:
        self.calls += 1
        return self.calls / 10 * F.cross_entropy(o, t)


class Baseline:
    """A loss less a running mean of what it was, as in REINFORCE."""

    mean = torch.zeros((), dtype=torch.float64)

    def __call__(self, o: Any, t: Any) -> Any:
        each = each_of(o, t)
        loss = (each * (each.detach() - self.mean)).mean()
        self.mean = 0.9 * self.mean + 0.1 * each.detach().mean()
        return loss


class CountingModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.calls = network(), 0

    def forward(self, rows: Any) -> Any:
        self.calls += 1
        return self.layers(rows * self.calls)


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (Around(lambda rows, net: net(F.dropout(rows)), network()), F.cross_entropy),
        (Around(lambda rows, net: net(rows + torch.randn_like(rows)), network()), F.cross_entropy),
        (network(), lambda o, t: F.cross_entropy(o + torch.randn_like(o), t)),
        (CountingModule(), F.cross_entropy),
        (network(), Counting()),
        (network(), Baseline()),
        (Around(lambda rows, net: F.gumbel_softmax(net(rows)), network()), F.cross_entropy),
        (Around(lambda rows, net: net(rows.mul_(0.5)), network()), F.cross_entropy),
    ],
    ids=[
        "dropout",
        "noise",
        "noise of the loss",
        "count",
        "count of the loss",
        "running mean",
        "Gumbel's noise",
        "inputs in place",
    ],
)
def test_what_is_no_function_of_its_parameters_is_refused(module: Any, loss: Loss) -> None:
    with pytest.raises(ConfigError, match="take out what it draws or counts"):
        TorchProblem(module, loss, (inputs(), SORTED))


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (network(), lambda o, t: F.cross_entropy(o.detach(), t)),
        (network(), lambda o, t: (o.argmax(1) != t).double().mean()),
        (network(), lambda o, t: torch.tensor(F.cross_entropy(o, t).item())),
        (Around(lambda rows, net: net(rows).detach(), network()), F.cross_entropy),
        (Around(lambda rows, net: rows[:, :CLASSES], network()), F.cross_entropy),
    ],
    ids=["detached", "errors", "item", "detached module", "unused module"],
)
def test_a_loss_without_a_gradient_is_named(module: Any, loss: Loss) -> None:
    with pytest.raises(ConfigError, match="no gradient by the module's parameters"):
        TorchProblem(module, loss, (inputs(), SORTED))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (float, "loss gives float, expected a scalar tensor"),
        (lambda loss: (loss, 1), "loss gives tuple, expected a scalar tensor"),
        (lambda loss: None, "loss gives NoneType, expected a scalar tensor"),
        (lambda loss: loss[None], r"loss gives shape \(1,\), expected its mean"),
    ],
    ids=["float", "tuple", "none", "vector"],
)
def test_what_is_no_scalar_tensor_is_named(found: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TorchProblem(network(), lambda o, t: found(F.cross_entropy(o, t)), (inputs(), SORTED))


# ---------------------------------------------------------------------- what the node says


@pytest.mark.parametrize(
    ("loss", "targets", "said", "own"),
    [
        (nn.BCEWithLogitsLoss(), NUMBERS, "ValueError", "Target size"),
        (F.cross_entropy, torch.cat([SORTED[:-1], torch.tensor([3])]), "IndexError", "Target 3"),
        (lambda o, t: o.no_such, SORTED, "AttributeError", "'no_such'"),
        (lambda o, t: {"a": 1}[int(t[0])], SORTED, "KeyError", "KeyError: 0"),
    ],
    ids=["shapes", "a class too many", "attribute", "key"],
)
def test_the_text_of_the_users_own_code_is_in_the_nodes_log_alone(
    loss: Loss, targets: Any, said: str, own: str
) -> None:
    outputs = 1 if targets is NUMBERS else CLASSES

    def problem(context: Context) -> TorchProblem:
        return TorchProblem(network(outputs), loss, (inputs(), targets))

    grid, start = InlineGrid(client_app("fed-plt", problem), 2), initial_arrays(network(outputs))
    with own_log() as log, pytest.raises(RunError) as caught:
        FedPLT(wait_timeout=0.1).start(grid, start, num_rounds=1)
    line = f"module and loss cannot run on one example of data ({said})"
    assert line in str(caught.value)
    assert own not in str(caught.value)
    of_nodes = [each for each in log.lines if each.startswith("agent") and own in each]
    assert len(of_nodes) == 2
    others = [each for each in log.lines if own in each and each not in of_nodes]
    assert not others


def test_shapes_that_make_all_pairs_are_named() -> None:
    with pytest.raises(ConfigError, match=r"shape \(1,\) and targets of shape \(\)"):
        TorchProblem(network(1), nn.MSELoss(), (inputs(), NUMBERS))


# ---------------------------------------------------------------------- private steps

PRIVATE = {"clip": 0.5, "noise_scale": 0.01, "max_local_steps": 1, "step_size_base": 0.1}


def private_round(loss: Loss, targets: Any, zero: bool = False) -> Any:
    """Return the result of a round of one private step on all rows."""
    make = lambda: network(CLASSES, zero)  # noqa: E731
    participant = LoopParticipant("scaffold", make, lambda context: ROWS)
    app = participant.app()

    def loss_fn(model: Any, batch: Any) -> Any:
        return loss(model(batch[0]), batch[1])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = make()
        with participant.round(message, context, model) as local:
            local.private_step(loss_fn, (inputs(), targets))
        return local.reply()

    return Scaffold(**PRIVATE).start(InlineGrid(app, 1), initial_arrays(make()), num_rounds=1)


BY_DATA = {
    "weights by frequency", "an ignored class", "a mask", "hard examples", "the worst class",
    "the mean of classes",
}  # fmt: skip
"""Losses whose work depends on the examples, which vmap does not take."""
IN_LARGE_BATCHES = {
    "without a tenth", "without a fiftieth", "another loss in large batches",
}  # fmt: skip
RANGES = {"a mean that is cut", "a mean that is flooded", "Huber's of a mean"}
"""Of one example as of a mean: a private step minimises the mean of what they are of one."""
IN_VMAP = [
    name
    for name in CLASS_LOSSES
    if name not in BY_DATA | IN_LARGE_BATCHES | RANGES | {"shuffled targets"}
]


@pytest.mark.parametrize("classes", range(2, 9))
def test_a_mask_of_any_of_a_few_classes_is_found(classes: int) -> None:
    """Whatever the records are, and with outputs in a mapping, whose classes nobody can count."""

    def loss(o: Any, t: Any) -> Any:
        keep = t != classes - 1
        return (each_of(o, t) * keep).sum() / (keep.sum() + 1e-6)

    def loss_fn(model: Any, batch: Any) -> Any:
        return loss(model(batch[0]), batch[1])

    participant = LoopParticipant("scaffold", lambda: network(classes), lambda context: ROWS)
    with pytest.raises(ConfigError, match="not the mean of their losses"):
        participant.check(loss_fn, (inputs(), ONE_CLASS))
    module = Around(lambda rows, net: {"logits": net(rows)}, network(classes))
    with pytest.raises(ConfigError):
        TorchProblem(module, lambda o, t: loss(o["logits"], t), (inputs(), ONE_CLASS))


@pytest.mark.parametrize("name", sorted(IN_LARGE_BATCHES))
def test_a_check_before_a_run_tries_a_large_batch(name: str) -> None:
    def loss_fn(model: Any, batch: Any) -> Any:
        return CLASS_LOSSES[name](model(batch[0]), batch[1])

    participant = LoopParticipant("scaffold", network, lambda context: ROWS)
    participant.check(lambda m, b: F.cross_entropy(m(b[0]), b[1]), (inputs(), SORTED))
    with pytest.raises(ConfigError, match="not the mean of their losses"):
        participant.check(loss_fn, (inputs(), SORTED))


@pytest.mark.parametrize("name", sorted(BY_DATA - {"an ignored class", "a mask"}))
def test_a_private_step_takes_no_loss_whose_work_depends_on_the_examples(name: str) -> None:
    with refused(Told.VMAP, "."):
        private_round(CLASS_LOSSES[name], SORTED)


@pytest.mark.parametrize("zero", [False, True], ids=["", "equal outputs"])
@pytest.mark.parametrize("name", IN_VMAP)
def test_a_private_step_refuses_what_is_no_mean(name: str, zero: bool) -> None:
    """Whatever the records are: here all are of one class, where weights cancel."""
    told = (
        Told.CLASS_WEIGHTS if "class weights" in name or name.startswith("smoothed with") else None
    )
    if name == "weights of log-probabilities":
        told = Told.CLASS_WEIGHTS
    with refused(told or Told.NO_MEAN, "."):
        private_round(CLASS_LOSSES[name], ONE_CLASS, zero)


@pytest.mark.parametrize("zero", [False, True], ids=["", "equal outputs"])
@pytest.mark.parametrize("name", RIGHT_CLASSES)
def test_a_private_step_takes_means(
    name: str, zero: bool, caplog: pytest.LogCaptureFixture
) -> None:
    done = private_round(RIGHT_CLASSES[name], SORTED, zero)
    assert not done.history[0].failures
    assert "not the mean" not in caplog.text


def test_no_refusal_says_that_a_record_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """The coordinator would see that it is there: the node's own log says it."""
    from privet.agents.loop.private_steps import warn_once

    warn_once.cache_clear()
    targets = SORTED.clone()
    targets[-1] = -100
    with caplog.at_level(logging.WARNING, "flwr.privet"):
        assert not private_round(F.cross_entropy, targets).history[0].failures
    assert "not the mean of their losses (class weights, a sum, ignored targets)" in caplog.text


def plain(tensor: Any) -> Any:
    """Return the numbers of all examples, of a tensor of one under vmap."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return np.array(tensor.tolist())


def test_what_is_tried_has_no_number_of_the_records() -> None:
    """A loss that is no mean where it meets their numbers alone is not refused."""
    seen: list[Any] = []

    def watched(o: Any, t: Any) -> Any:
        seen.append(plain(t))
        return F.cross_entropy(o, t)

    targets = SORTED.clone()
    targets[:] = 2
    private_round(watched, targets)
    tried = [each for each in seen if (each != 2).any()]
    assert tried
    assert all(each.size <= 10 and set(each.ravel()) <= set(range(8)) for each in tried)
