"""PyTorch modules as problems: gradients, clipping, names, refusals, and small runs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from sklearn.datasets import load_digits

from privet.client_apps import TorchProblem, client_app, trainable_arrays
from privet.client_apps.local_sgd import local_sgd_app
from privet.core import ConfigError
from privet.kernel import ClippableProblem
from privet.problems import L2, MultinomialLogistic
from privet.sim.engine import InlineGrid
from privet.strategies import DPIADMM, DPFedSGD, FedPDM, FedPLT
from privet.wire import Layout
from support.federations import position


def test_missing_torch_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match="pip install torch") as caught:
        TorchProblem(object(), print, ())
    assert "\n" not in str(caught.value)


try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")

RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((9, 4))
LABELS = RNG.integers(0, 3, 9)


def network(dtype: Any = None, seed: int = 0) -> Any:
    """A small network of layers that differ in kind."""
    torch.manual_seed(seed)
    layers = torch.nn.Sequential(
        torch.nn.Linear(4, 6),
        torch.nn.LayerNorm(6),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(6, 3, bias=False),
    )
    return layers.to(dtype or torch.float64)


def cross_entropy(outputs: Any, targets: Any) -> Any:
    """The mean over the batch."""
    return torch.nn.functional.cross_entropy(outputs, targets)


def problem(**options: Any) -> TorchProblem:
    return TorchProblem(network(), cross_entropy, (INPUTS, LABELS), **options)


def flat(module: Any) -> np.ndarray:
    arrays = ArrayRecord(module.state_dict())
    return Layout.of(arrays).flatten(arrays)


def example_gradient(x: np.ndarray, i: int) -> np.ndarray:
    """The gradient of one example by loading x into a module and going backwards."""
    module = network().eval()
    module.load_state_dict(
        Layout.of(ArrayRecord(module.state_dict())).restore(x).to_torch_state_dict()
    )
    loss = cross_entropy(module(torch.tensor(INPUTS[i : i + 1])), torch.tensor(LABELS[i : i + 1]))
    loss.backward()
    return np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])


@needs_torch
@pytest.mark.parametrize("chunk_size", [1024, 2])
@pytest.mark.parametrize("options", [{}, {"regularizer": 0.2, "divisor": 20.0}])
def test_gradient_by_finite_differences(options: dict[str, Any], chunk_size: int) -> None:
    if "regularizer" in options:
        options = {**options, "regularizer": L2(options["regularizer"])}
    f = problem(chunk_size=chunk_size, **options)
    x = flat(network(seed=1))
    found = f.gradient(x)
    step = 1e-6
    for k in range(0, f.dim, 3):
        e = np.zeros(f.dim)
        e[k] = step
        assert found[k] == pytest.approx((f.value(x + e) - f.value(x - e)) / (2 * step), abs=1e-8)


@needs_torch
@pytest.mark.parametrize("rows", [None, np.array([2, 5, 2, 8])])
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("options", [{}, {"per_example": "loop"}, {"chunk_size": 2}])
def test_clipping_is_that_of_a_loop(options: Any, norm: Any, rows: Any) -> None:
    f = problem(regularizer=L2(0.1), divisor=18.0, **options)
    assert isinstance(f, ClippableProblem)
    x, clip = flat(network(seed=1)), 0.5
    total, cut = np.zeros(f.dim), 0
    wanted = range(9) if rows is None else rows
    for i in wanted:
        g = example_gradient(x, i)
        length = np.linalg.norm(g, 1 if norm == "l1" else 2)
        cut += length > clip
        total += g * min(1.0, clip / length)
    assert cut
    expected = total * 9 / (18.0 * len(wanted)) + 0.1 * x
    assert f.clipped_gradient(x, clip, norm, rows) == pytest.approx(expected, abs=1e-12)


@needs_torch
def test_scalar_and_unused_parameters() -> None:
    class Scaled(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))
            self.unused = torch.nn.Parameter(torch.ones(2))
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, inputs: Any) -> Any:
            return self.scale * (inputs @ self.weight)

    targets = INPUTS @ np.arange(4.0)
    f = TorchProblem(Scaled().double(), torch.nn.functional.mse_loss, (INPUTS, targets))
    x = np.array([2.0, 1.0, 1.0, 0.5, -1.0, 0.0, 1.0])
    scores = INPUTS @ x[3:]
    slopes = 2 * (2.0 * scores - targets)
    each = np.column_stack([slopes * scores, np.zeros((9, 2)), slopes[:, None] * 2.0 * INPUTS])
    assert f.gradient(x) == pytest.approx(each.mean(axis=0))
    weights = np.minimum(1.0, 3.0 / np.linalg.norm(each, axis=1))
    assert f.clipped_gradient(x, 3.0) == pytest.approx(weights @ each / 9)
    assert f.arrays(x)["scale"].numpy() == 2.0


@needs_torch
def test_mini_batch_is_the_mean_of_its_examples() -> None:
    x = flat(network(seed=1))
    rows = np.array([0, 7, 7])
    expected = np.mean([example_gradient(x, i) for i in rows], axis=0)
    assert problem().gradient(x, rows) == pytest.approx(expected, abs=1e-12)


@needs_torch
def test_convolutions_clip_alike_by_vmap_and_by_loop() -> None:
    def convolutional() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3),
            torch.nn.GroupNorm(2, 4),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Linear(36, 3),
        ).double()

    images = np.random.default_rng(1).standard_normal((9, 1, 8, 8))
    whole, single = (
        TorchProblem(convolutional(), cross_entropy, (images, LABELS), per_example=way)
        for way in ("vmap", "loop")
    )
    assert whole.names[0] == "0.weight"
    x = flat(convolutional())
    found = whole.clipped_gradient(x, 0.7)
    assert found == pytest.approx(single.clipped_gradient(x, 0.7), abs=1e-12)
    assert not np.allclose(found, whole.gradient(x))
    assert whole.clipped_gradient(x, 1e6) == pytest.approx(whole.gradient(x), abs=1e-12)


@needs_torch
def test_linear_module_is_multinomial_logistic() -> None:
    module = torch.nn.Linear(4, 3, bias=False).double()
    f = TorchProblem(module, cross_entropy, (INPUTS, LABELS), regularizer=L2(0.3))
    g = MultinomialLogistic(INPUTS, LABELS, 3, regularizer=L2(0.3))
    x = RNG.standard_normal(12)

    def turned(v: np.ndarray) -> np.ndarray:  # torch keeps (K, d), Privet (d, K)
        return v.reshape(4, 3).T.ravel()

    rows = np.array([1, 4, 4])
    assert f.value(turned(x)) == pytest.approx(g.value(x))
    assert f.gradient(turned(x)) == pytest.approx(turned(g.gradient(x)))
    assert f.gradient(turned(x), rows) == pytest.approx(turned(g.gradient(x, rows)))
    for norm in ("l1", "l2"):
        assert f.clipped_gradient(turned(x), 0.4, norm) == pytest.approx(
            turned(g.clipped_gradient(x, 0.4, norm))
        )


@needs_torch
def test_names_are_the_modules_own_and_the_result_loads() -> None:
    module = network()
    f = TorchProblem(module, cross_entropy, (INPUTS, LABELS))
    arrays = ArrayRecord(module.state_dict())
    assert f.names == tuple(arrays) == ("0.weight", "0.bias", "1.weight", "1.bias", "4.weight")
    x = RNG.standard_normal(f.dim)
    other = network(seed=2)
    other.load_state_dict(f.arrays(x).to_torch_state_dict())
    assert np.array_equal(flat(other), x)
    assert np.array_equal(flat(module), Layout.of(f.arrays()).flatten(f.arrays()))


@needs_torch
def test_same_bits_whatever_the_threads_and_the_module_is_left_alone() -> None:
    module = network(torch.float32).train()
    before = flat(module)
    f = TorchProblem(module, cross_entropy, (INPUTS, LABELS))
    x = RNG.standard_normal(f.dim).astype("f4")
    x.flags.writeable = False
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = f.clipped_gradient(x, 0.1), f.gradient(x), f.value(x)
        torch.set_num_threads(2)
        two = f.clipped_gradient(x, 0.1), f.gradient(x), f.value(x)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)
    assert f.dtype == np.float32
    assert one[0].dtype == one[1].dtype == np.float32
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert module.training
    assert np.array_equal(flat(module), before)


@needs_torch
def test_example_without_a_finite_gradient_adds_nothing() -> None:
    broken = INPUTS.copy()
    broken[3] = np.inf
    f = TorchProblem(network(), cross_entropy, (broken, LABELS))
    x = flat(network(seed=1))
    kept = [i for i in range(9) if i != 3]
    total = sum(
        g * min(1.0, 0.5 / np.linalg.norm(g)) for g in (example_gradient(x, i) for i in kept)
    )
    assert f.clipped_gradient(x, 0.5) == pytest.approx(total / 9, abs=1e-12)


@needs_torch
def test_data_may_be_a_dataset_a_subset_or_a_loader() -> None:
    whole = torch.utils.data.TensorDataset(torch.tensor(INPUTS), torch.tensor(LABELS))
    x = flat(network(seed=1))
    expected = problem().gradient(x)
    loader = torch.utils.data.DataLoader(whole, batch_size=4, shuffle=True)
    for data in (whole, loader):
        found = TorchProblem(network(), cross_entropy, data)
        assert found.num_examples == 9
        assert np.array_equal(found.gradient(x), expected)
    part = torch.utils.data.Subset(whole, [0, 4])
    found = TorchProblem(network(), cross_entropy, part)
    assert np.array_equal(found.gradient(x), problem().gradient(x, np.array([0, 4])))


@needs_torch
def test_frozen_parameters_stay_out() -> None:
    module = network()
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    f = TorchProblem(module, cross_entropy, (INPUTS, LABELS))
    start = trainable_arrays(module)
    assert tuple(start) == f.names == ("1.weight", "1.bias", "4.weight")
    assert f.dim == 6 + 6 + 18
    x = Layout.of(start).flatten(start)
    whole = network()
    g = TorchProblem(whole, cross_entropy, (INPUTS, LABELS))
    assert np.array_equal(f.gradient(x), g.gradient(flat(whole))[-f.dim :])


@needs_torch
def test_buffers_are_refused_or_constant() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).double()
    with pytest.raises(ConfigError, match=r"buffers \(1.running_mean\)"):
        TorchProblem(module, cross_entropy, (INPUTS, LABELS))
    f = TorchProblem(module, cross_entropy, (INPUTS, LABELS), buffers="constant")
    assert "1.running_mean" not in f.names
    f.gradient(RNG.standard_normal(f.dim))
    assert torch.equal(f.module[1].running_mean, torch.zeros(3, dtype=torch.float64))


@needs_torch
@pytest.mark.parametrize(
    ("build", "line"),
    [
        (
            lambda: TorchProblem(
                torch.nn.Sequential(
                    torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3, track_running_stats=False)
                ).double(),
                cross_entropy,
                (INPUTS, LABELS),
            ),
            "cannot run on one example",
        ),
        (
            lambda: TorchProblem(
                network(), torch.nn.CrossEntropyLoss(reduction="sum"), (INPUTS, LABELS)
            ),
            "reduction='mean'",
        ),
        (
            lambda: TorchProblem(
                network(), torch.nn.CrossEntropyLoss(reduction="none"), (INPUTS, LABELS)
            ),
            "gives shape",
        ),
        (lambda: TorchProblem(network(), cross_entropy, (INPUTS, LABELS[:3])), "9 inputs and 3"),
        (lambda: TorchProblem(network(), cross_entropy, (INPUTS[:0], LABELS[:0])), "no data"),
        (lambda: TorchProblem(network(), cross_entropy, (INPUTS[:, :2], LABELS)), "one example"),
        (lambda: problem(per_example="jacobian"), "vmap or loop"),
        (lambda: problem(chunk_size=0), "chunk_size"),
        (lambda: problem(buffers="drop"), "refuse or constant"),
        (
            lambda: TorchProblem(torch.nn.ReLU(), cross_entropy, (INPUTS, LABELS)),
            "no trainable",
        ),
        (
            lambda: TorchProblem(network(torch.bfloat16), cross_entropy, (INPUTS, LABELS)),
            "float32 or float64",
        ),
    ],
)
def test_refusals(build: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        build()
    assert "\n" not in str(caught.value)


@needs_torch
def test_tied_parameters_are_refused() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)).double()
    module[1].weight = module[0].weight
    with pytest.raises(ConfigError, match="tied"):
        TorchProblem(module, cross_entropy, (INPUTS, LABELS))


# ---------------------------------------------------------------------- runs

AGENTS = 5


def mlp() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


def digits() -> tuple[list[TorchProblem], Any]:
    """Agents that see few of the ten digits, and a test of a state dict's accuracy."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("f4")
    order = np.random.default_rng(0).permutation(len(labels))
    test, train = order[:400], order[400:]
    train = train[np.argsort(labels[train], kind="stable")]
    shards = np.array_split(train, 3 * AGENTS)
    parts = [np.concatenate(shards[i::AGENTS]) for i in range(AGENTS)]
    problems = [TorchProblem(mlp(), cross_entropy, (images[p], labels[p])) for p in parts]

    def accuracy(arrays: ArrayRecord) -> float:
        module = mlp()
        module.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            guesses = module(torch.tensor(images[test])).argmax(1).numpy()
        return float(np.mean(guesses == labels[test]))

    return problems, accuracy


def run(strategy: Any, name: str, problems: list[Any], rounds: int) -> Any:
    app = client_app(name, lambda context: problems[position(context)])
    grid = InlineGrid(app, len(problems))
    return strategy.start(grid, ArrayRecord(mlp().state_dict()), num_rounds=rounds)


@needs_torch
@pytest.mark.slow
def test_digits_by_fed_plt_and_by_fed_pdm_with_a_tenth_of_the_coordinates() -> None:
    problems, accuracy = digits()
    strategies = {
        "fed-plt": FedPLT(
            rho=5.0, local_epochs=20, local_solver="sgd", step_size=0.2, batch_size=64
        ),
        "fed-pdm": FedPDM(
            rho=0.1,
            max_local_steps=20,
            step_size_base=0.6,
            step_size_rule="constant",
            batch="sample",
            batch_size=64,
            dual="public",
            sparsifier="top-k",
            alpha_u=0.1,
        ),
    }
    rounds = {"fed-plt": 20, "fed-pdm": 100}
    results = {name: run(strategies[name], name, problems, rounds[name]) for name in strategies}
    uploads = {}
    for name, result in results.items():
        total = sum(done.bytes_up for done in result.history)
        uploads[name] = total / (AGENTS * rounds[name])
        print(f"{name}: accuracy {accuracy(result.arrays):.4f}, {total} bytes up")
    assert accuracy(results["fed-plt"].arrays) > 0.93
    assert accuracy(results["fed-pdm"].arrays) > 0.87
    # A dense upload is d floats; a tenth of them needs their places besides.
    assert uploads["fed-plt"] == pytest.approx(4 * problems[0].dim, rel=0.02)
    assert uploads["fed-pdm"] < 0.13 * uploads["fed-plt"]


@needs_torch
@pytest.mark.parametrize("name", ["fed-plt", "dp-iadmm", "dp-fedsgd"])
def test_private_runs_are_accounted(name: str) -> None:
    problems, _ = digits()
    strategy = {
        "fed-plt": lambda: FedPLT(
            local_solver="noisy-gd", local_epochs=2, step_size=0.2, clip=1.0, noise_variance=1e-3
        ),
        "dp-iadmm": lambda: DPIADMM(clip=1.0, noise_scale=0.01),
        "dp-fedsgd": lambda: DPFedSGD(clip=1.0, noise_scale=0.01),
    }[name]()
    result = run(strategy, name, problems, 1)
    assert 0 < result.history[0].epsilon < np.inf
    assert not result.history[0].failures


@needs_torch
def test_flowers_own_fed_avg_trains_the_same_problems() -> None:
    problems, accuracy = digits()
    app = local_sgd_app(
        lambda context: problems[position(context)],
        max_local_steps=20,
        step_size_base=0.5,
        step_size_rule="constant",
    )
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=AGENTS, min_available_nodes=AGENTS)
    start = ArrayRecord(mlp().state_dict())
    result = strategy.start(InlineGrid(app, AGENTS), start, num_rounds=15)
    assert accuracy(result.arrays) > accuracy(start) + 0.5


@needs_torch
def test_two_runs_give_the_same_bits() -> None:
    runs = []
    for _ in range(2):
        problems, _ = digits()
        strategy = FedPLT(rho=2.0, local_epochs=3, local_solver="sgd", step_size=0.2, batch_size=32)
        arrays = run(strategy, "fed-plt", problems, 2).arrays
        runs.append(Layout.of(arrays).flatten(arrays))
    assert np.array_equal(*runs)
