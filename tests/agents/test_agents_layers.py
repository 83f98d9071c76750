"""Gradients of single examples by the inputs of layers and the slopes of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from privet.agents.adapters.networks import clipping
from privet.agents.adapters.networks.clipping import (
    CALLED,
    ROW,
    VmapError,
    batch_width,
    clipped_gradients,
)
from privet.agents.adapters.networks.layers import Uses, has_layers
from privet.agents.adapters.networks.memory import Memory
from privet.agents.loop.private_steps import summed

torch = pytest.importorskip("torch", reason="needs the group torch")
nn = torch.nn
shares = pytest.importorskip("privet.agents.adapters.networks.shares")
B = 7


class Through(nn.Module):
    """Layers, and what is done with them."""

    def __init__(self, forward: Callable[..., Any], **layers: Any) -> None:
        super().__init__()
        self.layers, self._forward = nn.ModuleDict(layers), forward

    def forward(self, x: Any) -> Any:
        return self._forward(x, **self.layers)


def tied() -> Any:
    table, head = nn.Embedding(6, 3), nn.Linear(3, 6, bias=False)
    head.weight = table.weight
    return Through(lambda x, table, head: head(torch.tanh(table(x))).sum(1), table=table, head=head)


def penalised() -> Any:
    def forward(x: Any, layer: Any) -> Any:
        return layer(x) * layer.weight.square().sum() + layer.bias

    return Through(forward, layer=nn.Linear(4, 3))


def frozen() -> Any:
    first, last = nn.Linear(4, 5), nn.Linear(5, 3)
    first.bias.requires_grad_(False)
    last.weight.requires_grad_(False)
    return nn.Sequential(first, nn.Tanh(), last)


def inner_gradient() -> Any:
    """The layer's output, and its slope by the input at another level of transforms."""

    def forward(x: Any, layer: Any) -> Any:
        slope = torch.func.grad(lambda z: torch.tanh(layer(z)).sum())(x)
        return layer(x) + slope.sum(1, keepdim=True)

    return Through(forward, layer=nn.Linear(4, 3))


def inner_vmap() -> Any:
    return Through(lambda x, layer: torch.func.vmap(layer)(x), layer=nn.Linear(4, 3))


def on_constants() -> Any:
    def forward(x: Any, layer: Any) -> Any:
        return layer(x) + layer(torch.ones(1, 4, dtype=torch.float64))

    return Through(forward, layer=nn.Linear(4, 3))


def under_no_grad() -> Any:
    def forward(x: Any, layer: Any) -> Any:
        with torch.no_grad():
            seen = layer(x)
        return layer(x) * seen

    return Through(forward, layer=nn.Linear(4, 3))


def spectral() -> Any:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)))


def weight_normed() -> Any:
    with pytest.warns(FutureWarning):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 3)))


class Held(nn.Module):
    """Parameters that others use."""

    def __init__(self, **tensors: Any) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            setattr(self, name, nn.Parameter(tensor))


class Centred(nn.Linear):
    """A layer whose weights are made of its parameter."""

    def forward(self, x: Any) -> Any:
        return nn.functional.linear(x, self.weight - self.weight.mean(), self.bias)


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(4))
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.layer(x + self.shift)


def images(*layers: Any) -> Callable[[], Any]:
    """Convolutions of pictures of 1 x 6 x 6 pixels, or signals or blocks of as many numbers."""
    return lambda: nn.Sequential(*(make() for make in layers), nn.Flatten(), nn.LazyLinear(3))


FLOATS = ("floats", 4)
TEXTS, PICTURES = ("texts", 5), ("pictures", 0)

CASES: dict[str, tuple[Callable[[], Any], tuple[str, int], bool]] = {
    "linear": (lambda: nn.Linear(4, 3), FLOATS, True),
    "without bias": (lambda: nn.Linear(4, 3, bias=False), FLOATS, True),
    "in place": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)),
        FLOATS,
        True,
    ),
    "in place again": (
        lambda: Through(
            lambda x, table, layer, last: last(
                nn.functional.relu_(
                    layer(table(x).add_(1.0).mul_(2.0).transpose(1, 2)[..., None]).mul_(3.0)
                ).flatten(1)
            ),
            table=nn.Embedding(6, 4),
            layer=nn.Conv2d(4, 2, (3, 1)),
            last=nn.Linear(6, 3),
        ),
        TEXTS,
        True,
    ),
    "twice": (
        lambda: Through(lambda x, layer: layer(torch.tanh(layer(x)))[:, :3], layer=nn.Linear(4, 4)),
        FLOATS,
        True,
    ),
    "positions": (
        lambda: Through(
            lambda x, table, layer: layer(table(x)).sum(1),
            table=nn.Embedding(6, 4, padding_idx=-2),
            layer=nn.Linear(4, 3),
        ),
        TEXTS,
        True,
    ),
    "one word": (
        lambda: Through(lambda x, table: table(x[:, 0]), table=nn.Embedding(6, 3, padding_idx=0)),
        TEXTS,
        True,
    ),
    "norms": (
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.LayerNorm(6), nn.Unflatten(1, (6, 1)), nn.GroupNorm(2, 6),
            nn.Flatten(), nn.Linear(6, 3),
        ),
        FLOATS,
        True,
    ),
    "tied": (tied, TEXTS, True),
    "penalised": (penalised, FLOATS, True),
    "frozen": (frozen, FLOATS, True),
    "inner gradient": (inner_gradient, FLOATS, True),
    "inner vmap": (inner_vmap, FLOATS, True),
    "under no_grad": (under_no_grad, FLOATS, True),
    "on constants": (on_constants, FLOATS, True),
    "convolutions": (
        images(lambda: nn.Conv2d(1, 4, 3, 2, 1), lambda: nn.Conv2d(4, 2, 2, dilation=2, groups=2)),
        PICTURES,
        True,
    ),
    "same": (
        images(
            lambda: nn.Conv2d(1, 2, 3, padding="same", bias=False),
            lambda: nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        ),
        PICTURES,
        True,
    ),
    "signals": (
        images(lambda: nn.Flatten(2), lambda: nn.Conv1d(1, 2, 3, padding=1)), PICTURES, True,
    ),
    "blocks": (
        images(lambda: nn.Unflatten(2, (2, 3)), lambda: nn.Conv3d(1, 2, 2)), PICTURES, True,
    ),
    "lstm": (
        lambda: Through(
            lambda x, table, body, last: last(body(table(x))[0].sum(1)),
            table=nn.Embedding(6, 4),
            body=nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True),
            last=nn.Linear(6, 3),
        ),
        TEXTS,
        True,
    ),
    "last states": (
        lambda: Through(
            lambda x, table, body: torch.cat(body(table(x).transpose(0, 1))[1])[:, :, :3].sum(0),
            table=nn.Embedding(6, 4),
            body=nn.LSTM(4, 3, bias=False),
        ),
        TEXTS,
        True,
    ),
    "projections": (
        lambda: Through(
            lambda x, body: body(x[:, None])[0][:, 0], body=nn.LSTM(4, 5, proj_size=3)
        ),
        FLOATS,
        False,
    ),
    "spectral norm": (spectral, FLOATS, False),
    "weight norm": (weight_normed, FLOATS, False),
    "own parameters": (Own, FLOATS, True),
    "nothing but its own": (
        lambda: Through(
            lambda x, held: x[:, :3] * held.one, held=Held(one=torch.randn(3))
        ),
        FLOATS,
        False,
    ),
    "derived": (lambda: nn.Sequential(nn.Linear(4, 4), Centred(4, 3)), FLOATS, False),
    "frequencies": (
        lambda: Through(
            lambda x, table: table(x).sum(1), table=nn.Embedding(6, 3, scale_grad_by_freq=True)
        ),
        TEXTS,
        False,
    ),
}  # fmt: skip


def batch(kind: str, width: int, count: int = B) -> list[Any]:
    torch.manual_seed(1)
    if kind == "texts":
        inputs = torch.randint(3, 6, (count, width))  # of few, so that some come again
        inputs[0] = 4
    else:
        inputs = torch.randn(count, *((1, 6, 6) if kind == "pictures" else (width,))).double()
    return [inputs, torch.arange(count) % 3]


def loss(model: Any, examples: Any) -> Any:
    return nn.functional.cross_entropy(model(examples[0]), examples[1])


def made(make: Callable[[], Any], rows: list[Any]) -> Any:
    torch.manual_seed(2)
    model = make().double()
    model(rows[0])  # which gives lazy layers their shapes
    return model.eval()  # a spectral norm goes on with its iteration else


def one_by_one(model: Any, trained: dict[str, Any], rows: list[Any]) -> Any:
    """Return every example's gradient (b, d), by a backward pass for each."""
    found = []
    for example in zip(*rows, strict=True):
        model.zero_grad()
        loss(model, [part[None] for part in example]).backward()
        found.append(torch.cat([each.grad.flatten() for each in trained.values()]))
    return torch.stack(found)


@pytest.mark.parametrize("name", CASES)
def test_the_sum_is_that_of_explicit_gradients(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make, form, layered = CASES[name]
    rows = batch(*form)
    model = made(make, rows)
    trained = {key: each for key, each in model.named_parameters() if each.requires_grad}
    assert has_layers(model, trained) is layered
    if name == "frequencies":  # they are counted in one example alone, as here
        rows[0] = torch.stack([torch.randperm(5) for _ in range(B)])
    gradients = one_by_one(model, trained, rows)
    lengths = gradients.norm(dim=1)
    clip = float(lengths.sort().values[B // 2])
    exact = (gradients * (clip / lengths).clamp(max=1.0)[:, None]).sum(0)
    found, _ = summed(model, trained, loss, rows, tuple, clip)
    assert np.allclose(found, exact, rtol=0, atol=1e-12 * clip * B)
    kept = np.arange(B) % 3 > 0
    monkeypatch.setattr(clipping, "batch_width", lambda *public: 3)
    some, _ = summed(model, trained, loss, rows, tuple, clip, kept=kept)
    exact = (gradients * (clip / lengths).clamp(max=1.0)[:, None])[torch.from_numpy(kept)].sum(0)
    assert np.allclose(some, exact, rtol=0, atol=1e-12 * clip * B)


def test_l1_norms_are_those_of_explicit_gradients() -> None:
    for name in ("linear", "positions", "one word", "tied"):
        make, form, _ = CASES[name]
        rows = batch(*form)
        model = made(make, rows)
        trained = dict(model.named_parameters())
        gradients = one_by_one(model, trained, rows)
        lengths = gradients.norm(1, dim=1)
        clip = float(lengths.sort().values[B // 2])
        exact = (gradients * (clip / lengths).clamp(max=1.0)[:, None]).sum(0)
        memory = Memory(model, loss)

        def one(named: Any, example: Any, model: Any = model, memory: Any = memory) -> Any:
            out = memory.call(model, named, (example[0][None],))
            return nn.functional.cross_entropy(out, example[1][None])

        found = clipped_gradients(
            one, {k: v.detach() for k, v in trained.items()}, rows, clip, "l1", memory=memory
        )
        assert np.allclose(found, exact, rtol=0, atol=1e-12 * clip * B)


@pytest.mark.parametrize(("formed", "blocks"), [(False, [1, 40]), (True, [1, 27, 13])])
def test_blocks_are_as_large_as_what_is_formed_allows(
    monkeypatch: pytest.MonkeyPatch, formed: bool, blocks: list[int]
) -> None:
    """Of a table of 600,000 numbers: where it is used in another way too, 2^24 are 27 examples."""

    def forward(x: Any, table: Any) -> Any:
        found = table(x).sum(1)
        return found + table.weight.square().mean() if formed else found

    torch.manual_seed(0)
    model = Through(forward, table=nn.Embedding(200_000, 3))
    rows = [torch.randint(200_000, (40, 5)), torch.arange(40) % 3]
    trained, counts, begin = dict(model.named_parameters()), list[int](), Uses.begin
    monkeypatch.setattr(Uses, "begin", lambda uses, n: (counts.append(n), begin(uses, n)))
    found, _ = summed(model, trained, loss, rows, tuple, 1e-3)
    assert counts == blocks
    if not formed:  # every example's gradient is longer than the clip, and most rows are its own
        gradients = one_by_one(model, trained, [part[:3] for part in rows])
        monkeypatch.undo()
        some, _ = summed(model, trained, loss, [part[:3] for part in rows], tuple, 1e-3)
        exact = (1e-3 * gradients / gradients.norm(dim=1, keepdim=True)).sum(0)
        assert np.allclose(some, exact, rtol=0, atol=1e-9)
        assert found.count_nonzero() > 500


@pytest.mark.parametrize(("expected", "work"), [(15, 2_000), (64, 60_000), (200, 1_000_000)])
def test_a_sampled_batch_is_as_wide_as_is_quickest(expected: int, work: int) -> None:
    """Against places that are filled at random: no other power of two is 10 % quicker."""
    rng = np.random.default_rng(0)

    def cost(width: int) -> float:
        kept = (np.flatnonzero(rng.random(8000) < expected / 8000) for _ in range(400))
        batches = [np.bincount(one % width, minlength=width).max() for one in kept]
        return float(np.mean(batches)) * (CALLED + width * (ROW + work))

    best = min(cost(1 << k) for k in range(9))
    assert cost(batch_width(expected, work)) < 1.1 * best


def changed_inputs(x: Any, layer: Any) -> Any:
    given = x * 1.0
    out = layer(given)
    given.mul_(2.0)
    return out


def hooked(x: Any, layer: Any) -> Any:
    out = layer(x)
    out.register_hook(lambda slope: slope - slope.mean(0))
    return out


def saved(x: Any, layer: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one):
        return layer(x)


def checkpointed(x: Any, layer: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda z: layer(z - z.mean(0)), x, use_reentrant=False)


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (changed_inputs, "changed in place"),
        (hooked, "register a hook"),
        (saved, "hooks on saved tensors"),
        (checkpointed, "hooks on saved tensors"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_could_see_other_examples_is_refused(forward: Any, said: str) -> None:
    rows = batch(*FLOATS)
    model = Through(forward, layer=nn.Linear(4, 3)).double()
    trained = dict(model.named_parameters())
    assert has_layers(model, trained)
    with pytest.raises(VmapError, match=said):
        summed(model, trained, loss, rows, tuple, 1.0)
    with pytest.raises(VmapError, match="one floating-point number"):
        summed(model, trained, lambda model, rows: model.layers["layer"](rows[0]), rows, tuple, 1.0)


def test_autocast_of_a_loss_leaves_gradients_of_two_dtypes() -> None:
    make, form, _ = CASES["convolutions"]
    rows = [part.float() if part.is_floating_point() else part for part in batch(*form)]
    model = made(make, batch(*form)).float()
    trained = dict(model.named_parameters())

    def lower(model: Any, examples: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, examples)

    plain, _ = summed(model, trained, loss, rows, tuple, 0.3)
    found, _ = summed(model, trained, lower, rows, tuple, 0.3)
    assert 0 < float((found - plain).norm()) < 0.02 * float(plain.norm())
