"""The graph between servers: generators, weights, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.core import ConfigError
from privet.strategies.gfl.graph import (
    Edge,
    check_weights,
    connected,
    edges_of,
    graph_edges,
    lazy,
    metropolis,
    neighbours,
    parse_edges,
    second_eigenvalue,
)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, tuple[Edge, ...]]:
    """A random tree with random further edges: connected by construction."""
    units = draw(st.integers(2, 9))
    tree = {(draw(st.integers(0, unit - 1)), unit) for unit in range(1, units)}
    pairs = [(p, m) for p in range(units) for m in range(p + 1, units)]
    more = draw(st.sets(st.sampled_from(pairs)))
    return units, tuple(sorted(tree | more))


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_metropolis_weights_satisfy_assumption_1(graph: tuple[int, tuple[Edge, ...]]) -> None:
    units, edges = graph
    weights = metropolis(edges, units)
    assert np.array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(axis=0), 1.0, rtol=0, atol=1e-14)
    degree = np.array([sum(unit in edge for edge in edges) for unit in range(units)])
    assert (np.diag(weights) >= 1.0 / (1.0 + degree) - 1e-15).all()
    assert edges_of(weights) == edges
    for p, m in edges:
        assert weights[p, m] == 1.0 / (1.0 + max(degree[p], degree[m]))
    assert second_eigenvalue(weights) < 1
    assert check_weights(weights.tolist()).tolist() == weights.tolist()


@pytest.mark.parametrize(
    ("kind", "count"),
    [("ring", 6), ("complete", 15), ("path", 5), ("star", 5), ("grid", 7)],
)
def test_generators(kind: str, count: int) -> None:
    edges = graph_edges(kind, 6)
    assert len(edges) == count
    assert connected(edges, 6)
    assert all(p < m for p, m in edges)


@pytest.mark.parametrize("kind", ["ring", "complete", "path", "star", "grid", "erdos-renyi"])
def test_one_and_two_units(kind: str) -> None:
    assert graph_edges(kind, 1) == ()
    assert metropolis((), 1).tolist() == [[1.0]]
    assert graph_edges(kind, 2, probability=1.0) == ((0, 1),)


def test_random_graphs_are_repeatable() -> None:
    one = graph_edges("erdos-renyi", 12, seed=3, probability=0.4)
    assert one == graph_edges("erdos-renyi", 12, seed=3, probability=0.4)
    assert one != graph_edges("erdos-renyi", 12, seed=4, probability=0.4)


def test_second_eigenvalue_of_a_ring() -> None:
    units = 10
    weights = metropolis(graph_edges("ring", units), units)
    wanted = (1 + 2 * math.cos(2 * math.pi / units)) / 3
    assert second_eigenvalue(weights) == pytest.approx(wanted, abs=1e-14)
    assert second_eigenvalue(lazy(weights)) == pytest.approx((1 + wanted) / 2, abs=1e-14)
    assert second_eigenvalue(metropolis(graph_edges("complete", 4), 4)) < 1e-15


def test_edge_lists() -> None:
    assert parse_edges(" 2-1 ,0-1,1-0,", 3) == ((0, 1), (1, 2))
    assert graph_edges("edges", 3, edges="0-1,1-2") == ((0, 1), (1, 2))
    assert neighbours(metropolis(((0, 1), (1, 2)), 3), 1) == (0, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0-1,1", "'1' is not an edge"),
        ("0-1-2", "'0-1-2' is not an edge"),
        ("a-b", "'a-b' is not an edge"),
        ("0-3", "'0-3' must join two units of 0 ... 2"),
        ("1-1", "'1-1' must join two units"),
        ("0-1", "does not join all 3 units"),
        ("", "not connected"),
    ],
)
def test_edge_lists_that_cannot_be_used(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match="graph") as caught:
        graph_edges("edges", 3, edges=text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_graphs_that_cannot_be_used() -> None:
    with pytest.raises(ConfigError, match="larger graph-probability"):
        graph_edges("erdos-renyi", 8, probability=0.0)
    with pytest.raises(ConfigError, match="choose one of ring, complete"):
        graph_edges("wheel", 8)
    with pytest.raises(ConfigError, match="units = 0"):
        graph_edges("ring", 0)


HALF = [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([[1.0, 0.0]], "shape"),
        ([[0.6, 0.4], [0.5, 0.5]], "symmetric"),
        ([[1.2, -0.2], [-0.2, 1.2]], ">= 0"),
        ([[float("nan"), 1.0], [1.0, 0.0]], "numbers"),
        ([[0.5, 0.4], [0.4, 0.6]], "column 0 sums to 0.9"),
        ([[0.0, 1.0], [1.0, 0.0]], "a_pp of unit 0 is 0"),
        ([[1.0, 0.0], [0.0, 1.0]], "not connected"),
    ],
)
def test_matrices_that_cannot_be_used(weights: list[list[float]], said: str) -> None:
    with pytest.raises(ConfigError, match="combination matrix") as caught:
        check_weights(weights)
    assert said in str(caught.value)
    assert check_weights(HALF).tolist() == HALF
