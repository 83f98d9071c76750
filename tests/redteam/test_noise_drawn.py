"""A reply leaves only with exactly the noise it was charged for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redteam.harness import PRIVATE, Drawn, Node, differ, problem, releases

FOREIGN = ("random", "homomorphic", "auto", "none")
"""Values of ``perturbation`` that are another algorithm's, or say that there is no noise."""


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("value", FOREIGN)
def test_dp_iadmm_takes_no_other_algorithms_perturbation(
    value: str, mechanism: str, tmp_path: Path
) -> None:
    """``auto`` may mean the noised default; then two equal messages give two uploads."""
    node = Node(tmp_path, problem(), max_epsilon=1.0)
    first, second = (
        node.train("dp-iadmm", perturbation=value, mechanism=mechanism) for _ in range(2)
    )
    if value == "auto" and first.refusal is None:
        assert second.upload is not None
        assert differ(first.upload, second.upload)
        return
    assert first.refusal is not None
    assert second.refusal is not None
    assert node.written == b""


@pytest.mark.parametrize("name", PRIVATE)
def test_equal_messages_never_give_equal_numbers(name: str, tmp_path: Path) -> None:
    node = Node(tmp_path, problem())
    first, second = (node.train(name) for _ in range(2))
    assert first.upload is not None
    assert second.upload is not None
    assert differ(first.upload, second.upload)
    assert node.charges == 2


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize(
    "lie",
    [
        {"perturbation": "none"},
        {"noise-scale": 0.0, "noise-variance": 0.0},
        {"noise-scale": float("nan"), "noise-variance": float("nan")},
        {"noise-scale": float("inf"), "noise-variance": float("inf")},
        {"clip": float("nan")},
        {"noise-scale": "1.0", "noise-variance": "1.0"},
        {"noise-seed": 3},
        {"sensitivity": "paper"},
        {"clip": 0.0, "row-norm": 0.0},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_nothing_leaves_that_was_not_noised(name: str, lie: dict[str, Any], tmp_path: Path) -> None:
    """Either the half has no such key, and its upload is noised as ever, or it refuses."""
    node = Node(tmp_path, problem())
    answers = [node.train(name, **lie) for _ in range(2)]
    if answers[0].upload is None:
        assert node.written == b""
        return
    assert answers[1].upload is not None
    assert differ(answers[0].upload, answers[1].upload)
    assert node.charges == 2


VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"protocol": name} for name in PRIVATE},
    "fed-plt contracting": {"protocol": "fed-plt", "step_size": 0.0, "local_epochs": 5},
    "fed-plt one step": {"protocol": "fed-plt", "local_epochs": 1},
    "fed-plt composed": {"protocol": "fed-plt", "step_size": 50.0},
    "fed-plt given smoothness": {"protocol": "fed-plt", "step_size": 0.0, "smoothness": 2.0},
    "dp-iadmm adaptive": {"protocol": "dp-iadmm", "local_updates": 4},
    "dp-iadmm laplace": {"protocol": "dp-iadmm", "mechanism": "laplace", "local_updates": 2},
    "dp-iadmm output": {
        "protocol": "dp-iadmm",
        "perturbation": "output",
        "local_updates": 3,
        "row_norm": 1.0,
    },
    "dp-iadmm output laplace": {
        "protocol": "dp-iadmm",
        "mechanism": "laplace",
        "perturbation": "output",
    },
    "dp-iadmm by epsilon": {"protocol": "dp-iadmm", "noise_scale": 0.0, "epsilon": 0.5},
    "dp-iadmm smooth": {"protocol": "dp-iadmm", "eta_rule": "smooth", "row_norm": 1.0},
    "fed-pdm five steps": {"protocol": "fed-pdm", "max_local_steps": 5, "row_norm": 1.0},
    "fed-pdm batch": {"protocol": "fed-pdm", "max_local_steps": 3, "clipping": "batch"},
    "fed-pdm sampled": {
        "protocol": "fed-pdm",
        "max_local_steps": 5,
        "row_norm": 1.0,
        "batch": "sample",
        "batch_size": 5,
    },
    **{
        f"fed-pdm {name}": {"protocol": "fed-pdm", "sparsifier": name, "uplink_k": 2}
        for name in ("rand-k", "public-top-k", "noisy-top-k")
    },
    "scaffold three steps": {"protocol": "scaffold", "max_local_steps": 3},
    "fed-dyn three steps": {"protocol": "fed-dyn", "max_local_steps": 3},
    **{
        f"{name} sampled": {"protocol": name, "batch": "sample", "batch_size": 5}
        for name in ("scaffold", "fed-dyn", "dp-fedsgd")
    },
    **{
        f"{name} batch": {"protocol": name, "clipping": "batch"}
        for name in ("scaffold", "fed-dyn", "dp-fedsgd")
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_draws_are_those_of_the_ledger(
    variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many numbers, and of the very scale, that the line of the ledger says."""
    settings = dict(VARIANTS[variant])
    name = settings.pop("protocol")
    node = Node(tmp_path, problem())
    drawn = Drawn(monkeypatch)
    for round_ in (1, 2):
        answer = node.train(name, round_=round_, **settings)
        assert answer.refusal is None
        count, scales = drawn.take()
        charged = releases(node)[-1]
        assert count == charged.get("count", 1) * charged.get("steps", 1) * node.dim
        assert scales == {charged["scale"]}


@pytest.mark.parametrize("rules", [{}, {"max_epsilon": None, "delta": None, "ledger_path": None}])
def test_a_private_dual_has_no_noise(
    rules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is hidden state that no noise covers: nothing leaves, whether a limit is set or not."""
    node = Node(tmp_path, problem(), **rules)
    drawn = Drawn(monkeypatch)
    answer = node.train("fed-pdm", dual="private")
    assert answer.refusal is not None
    assert "dual" in node.said
    assert node.written == b""
    assert drawn.take() == (0, set())
