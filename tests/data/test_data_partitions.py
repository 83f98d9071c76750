"""Partitions: a true partition whatever the input, fixed by the seed, as skewed as they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.data import SCHEMES, DataError, partition
from privet.data.extras import optional
from privet.data.held_out import hold_out
from support.extras import extra

FLWR_SCHEMES = ("flwr-iid", "flwr-dirichlet", "flwr-pathological")


def shares(labels: np.ndarray, parts: list[np.ndarray], value: int) -> np.ndarray:
    return np.array([np.mean(labels[part] == value) for part in parts])


def check_partition(labels: np.ndarray, agents: int, scheme: str, options: dict[str, Any]) -> None:
    parts = partition(labels, agents, scheme, **options)
    assert len(parts) == agents
    assert all(len(part) > 0 for part in parts)
    assert all(np.all(np.diff(part) > 0) for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    again = partition(labels, agents, scheme, **options)
    assert all(np.array_equal(left, right) for left, right in zip(parts, again, strict=True))


LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=200).map(np.array)
AGENTS = st.integers(1, 20)
SEEDS = st.integers(0, 2**40)


@given(LABELS, AGENTS, SEEDS)
def test_iid_is_a_partition_as_soon_as_there_is_an_example_each(
    labels: np.ndarray, agents: int, seed: int
) -> None:
    if len(labels) >= agents:
        check_partition(labels, agents, "iid", {"seed": seed})
    else:
        with pytest.raises(DataError, match=f"cannot give each of {agents} agents one"):
            partition(labels, agents, "iid", seed=seed)


@given(LABELS, AGENTS, SEEDS, st.integers(1, 4))
def test_label_is_a_partition_as_soon_as_there_is_an_example_a_shard(
    labels: np.ndarray, agents: int, seed: int, shards: int
) -> None:
    options = {"seed": seed, "classes_per_agent": shards}
    if len(labels) >= agents * shards:
        check_partition(labels, agents, "label", options)
    else:
        with pytest.raises(DataError, match=f"{agents} agents"):
            partition(labels, agents, "label", **options)


@given(LABELS, AGENTS, SEEDS, st.floats(0.5, 50))
def test_dirichlet_is_a_partition_when_examples_abound(
    labels: np.ndarray, agents: int, seed: int, alpha: float
) -> None:
    check_partition(
        np.tile(labels, 60 * agents), agents, "dirichlet", {"seed": seed, "dirichlet_alpha": alpha}
    )


@pytest.mark.parametrize("scheme", sorted(set(SCHEMES) - {"natural-id", "none"}))
def test_depends_on_the_seed_and_not_on_the_global_generator(scheme: str) -> None:
    labels = np.arange(300) % 3
    first = partition(labels, 5, scheme, seed=1)
    np.random.seed(99)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # type: ignore[index] # noqa: NPY002
    again = partition(labels, 5, scheme, seed=1)
    assert np.array_equal(before, np.random.get_state()[1])  # type: ignore[index] # noqa: NPY002
    other = partition(labels, 5, scheme, seed=2)
    assert all(np.array_equal(left, right) for left, right in zip(first, again, strict=True))
    assert not all(np.array_equal(left, right) for left, right in zip(first, other, strict=True))


def test_the_split_of_a_seed_is_pinned_for_agents_on_other_machines() -> None:
    labels = np.arange(12) % 2
    assert [part.tolist() for part in partition(labels, 3, "iid", seed=7)] == [
        [3, 4, 6, 8],
        [0, 1, 2, 5],
        [7, 9, 10, 11],
    ]
    dealt = partition(labels, 3, "label", seed=7, classes_per_agent=1)
    assert [part.tolist() for part in dealt] == [
        [0, 1, 3, 10],
        [2, 4, 6, 8],
        [5, 7, 9, 11],
    ]


def test_iid_sizes_differ_by_at_most_one_and_classes_are_mixed() -> None:
    labels = np.arange(10_003) % 2
    parts = partition(labels, 10, "iid", seed=0)
    assert {len(part) for part in parts} == {1000, 1001}
    # Five standard deviations of a share among 1000 examples: one false alarm in 10^5 seeds.
    assert np.all(np.abs(shares(labels, parts, 1) - 0.5) < 5 * 0.5 / np.sqrt(1000))


def test_label_shards_bound_the_labels_of_an_agent() -> None:
    labels = np.repeat(np.arange(10), 40)
    for shards in (1, 2, 4):
        parts = partition(labels, 20, "label", seed=3, classes_per_agent=shards)
        assert {len(part) for part in parts} == {20}
        # 40 per class is a multiple of every shard size here, so no shard spans two labels.
        assert max(len(set(labels[part])) for part in parts) <= shards


def test_dirichlet_runs_from_iid_to_skewed() -> None:
    labels = np.repeat(np.arange(5), 400)
    even = partition(labels, 8, "dirichlet", seed=1, dirichlet_alpha=1e7)
    for value in range(5):
        assert all(abs(np.sum(labels[part] == value) - 50) <= 2 for part in even)

    def spread(alpha: float) -> float:
        parts = partition(labels, 8, "dirichlet", seed=1, dirichlet_alpha=alpha)
        return float(np.mean([shares(labels, parts, value).std() for value in range(5)]))

    assert spread(0.1) > 2 * spread(1.0) > 4 * spread(100.0)


IDS = st.lists(st.sampled_from(["b", "a", "10", "9", "ä"]), min_size=1, max_size=60)


@given(IDS, st.integers(1, 6))
def test_natural_ids_deal_each_id_to_one_agent_in_sorted_order(ids: list[str], agents: int) -> None:
    labels = np.zeros(len(ids))
    wanted = [[i for i, name in enumerate(ids) if name == value] for value in sorted(set(ids))]
    if len(ids) < agents or len(wanted) < agents:
        with pytest.raises(DataError, match=f"{agents} agents"):
            partition(labels, agents, "natural-id", ids=np.array(ids))
        return
    parts = partition(labels, agents, "natural-id", ids=np.array(ids))
    assert [part.tolist() for part in parts] == wanted[:agents]


def test_natural_ids_without_an_agent_are_said_to_be_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    parts = partition(np.zeros(5), 2, "natural-id", ids=np.array([3, 1, 2, 3, 1]))
    assert [part.tolist() for part in parts] == [[1, 4], [2]]
    assert caplog.messages == [
        "partition natural-id: 3 ids for 2 agents, 2 examples are not used; num-agents=3 uses all"
    ]


def test_none_gives_a_node_all_of_its_own_file() -> None:
    for examples in (2, 4):
        parts = partition(np.arange(examples), 3, "none")
        assert [part.tolist() for part in parts] == [list(range(examples))] * 3


@given(IDS, st.integers(0, 2**40))
def test_a_fifth_of_every_id_is_held_out(ids: list[str], seed: int) -> None:
    train, test = hold_out(len(ids), seed, np.array(ids))
    assert sorted([*train, *test]) == list(range(len(ids)))
    assert all(np.all(np.diff(part) > 0) for part in (train, test))
    for value in set(ids):
        held_out = sum(ids[row] == value for row in test)
        assert held_out == round(ids.count(value) / 5)


class TestFlowers:
    """The partitions of flwr-datasets, against a FederatedDataset of the same rows."""

    LABELS = np.random.default_rng(0).integers(0, 5, 300)

    @pytest.fixture(autouse=True)
    def _extra(self) -> None:
        extra("flwr_datasets")

    @pytest.mark.parametrize("scheme", FLWR_SCHEMES)
    def test_are_those_of_a_federated_dataset(
        self, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        huggingface, flower = optional("datasets"), optional("flwr_datasets")
        monkeypatch.setattr(huggingface.config, "HF_DATASETS_CACHE", tmp_path / "cache")
        monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
        columns = {"label": self.LABELS.tolist(), "row": list(range(300))}
        (tmp_path / "repo").mkdir()
        huggingface.Dataset.from_dict(columns).to_parquet(tmp_path / "repo" / "train.parquet")
        kinds = {
            "flwr-iid": flower.partitioner.IidPartitioner(7),
            "flwr-dirichlet": flower.partitioner.DirichletPartitioner(
                7, "label", 0.3, min_partition_size=1, seed=11
            ),
            "flwr-pathological": flower.partitioner.PathologicalPartitioner(
                7, "label", 2, "first-deterministic", seed=11
            ),
        }
        federated = flower.FederatedDataset(
            dataset=str(tmp_path / "repo"), partitioners={"train": kinds[scheme]}, seed=11
        )
        own = {"dirichlet_alpha": 0.3} if scheme == "flwr-dirichlet" else {}
        parts = partition(self.LABELS, 7, scheme, seed=11, **own)
        for agent, part in enumerate(parts):
            assert part.tolist() == sorted(federated.load_partition(agent)["row"])

    @pytest.mark.parametrize("scheme", FLWR_SCHEMES)
    def test_deal_every_example_to_one_agent(self, scheme: str) -> None:
        own = {"dirichlet_alpha": 1.0} if scheme == "flwr-dirichlet" else {}
        check_partition(self.LABELS, 8, scheme, {"seed": 1, **own})

    @pytest.mark.parametrize("count", [1, 2, 4])
    def test_pathological_agents_have_just_so_many_labels(self, count: int) -> None:
        parts = partition(self.LABELS, 9, "flwr-pathological", classes_per_agent=count)
        assert [len(set(self.LABELS[part])) for part in parts] == [count] * 9

    def test_labels_no_agent_has_are_said_to_be_left_out(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        parts = partition(self.LABELS, 3, "flwr-pathological", classes_per_agent=1)
        assert [set(self.LABELS[part]) for part in parts] == [{0}, {1}, {2}]
        unused = int(np.sum(self.LABELS > 2))
        assert f"{unused} examples are of labels that no agent has" in caplog.text

    @pytest.mark.parametrize(
        ("scheme", "options", "expected"),
        [
            ("flwr-dirichlet", {"dirichlet_alpha": 0.0}, "dirichlet-alpha = 0.0: must be > 0"),
            (
                "flwr-dirichlet",
                {"dirichlet_alpha": 1e-4},
                "dirichlet-alpha = 0.0001 an agent",
            ),
            (
                "flwr-pathological",
                {"classes_per_agent": 6},
                r"classes-per-agent must be in 1 \.\.\.",
            ),
            (
                "flwr-pathological",
                {"classes_per_agent": 0},
                "classes-per-agent = 0: must be >= 1",
            ),
            (
                "flwr-pathological",
                {"num_agents": 300, "classes_per_agent": 5},
                "expected a smaller classes-per-agent",
            ),
        ],
    )
    def test_what_flower_refuses_is_one_line(
        self, scheme: str, options: dict[str, Any], expected: str
    ) -> None:
        with pytest.raises(DataError, match=expected) as caught:
            partition(**{"labels": self.LABELS, "num_agents": 40, "scheme": scheme, **options})
        assert str(caught.value).startswith(f"partition {scheme}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"scheme": "natural-id"}, "the data have no ids; give id-column (dataset csv, or an hf:"),
        (
            {"scheme": "shards"},
            "partition 'shards' is unknown; expected one of dirichlet",
        ),
        ({"num_agents": 0}, "num-agents must be >= 1, got 0"),
        ({"num_agents": 7}, "6 examples cannot give each of 7 agents one"),
        ({"seed": -1}, "partition-seed must be >= 0, got -1"),
        ({"scheme": "label", "classes_per_agent": 0}, "label: classes-per-agent = 0: must be >= 1"),
        ({"scheme": "label", "classes_per_agent": 4}, "too few for 2 agents of 4 shards"),
        ({"scheme": "dirichlet", "dirichlet_alpha": 0.0}, "dirichlet-alpha = 0.0: must be > 0"),
        (
            {"scheme": "dirichlet", "dirichlet_alpha": float("nan")},
            "alpha = nan: must be > 0",
        ),
        (
            {"scheme": "iid", "dirichlet_alpha": 0.3},
            "partition iid: dirichlet_alpha is no parameter of it",
        ),
        (
            {"scheme": "dirichlet", "dirichlet_alpha": 1e-3, "num_agents": 6},
            "with dirichlet-alpha 0.001 some of the 6 agents have no example",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(DataError) as caught:
        partition(**{"labels": np.arange(6) % 2, "num_agents": 2, **arguments})
    assert expected in str(caught.value)
