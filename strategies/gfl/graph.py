"""The graph between the servers of graph federated learning: edges and weights.

E. Rizk, S. Vlaski, A. H. Sayed, "Privatized Graph Federated Learning", Assumption 1: the
combination matrix A is symmetric, its columns sum to 1, and the graph is connected. That the noise
of eq. (47) cancels in the centroid also needs a positive diagonal. Pure functions on (P, P) arrays;
units are numbered 0 ... P - 1 and an edge is a pair of different units.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.core import ConfigError

Matrix = NDArray[np.float64]
Edge = tuple[int, int]

GRAPHS = ("ring", "complete", "path", "star", "erdos-renyi", "grid", "edges")
TOLERANCE = 1e-9
"""The allowed distance of sums of weights from 1, e.g. as a matrix was given in decimals."""


def graph_edges(
    kind: str, units: int, *, edges: str = "", seed: int = 0, probability: float = 0.5
) -> tuple[Edge, ...]:
    """Return the edges (p, m), p < m, in ascending order.

    Parameters
    ----------
    kind : str
        "ring", "complete", "path", "star" (unit 0 in the middle), "grid" (as square as the number
        of units allows), "erdos-renyi" (each pair with ``probability``, from ``seed``), all by
        networkx's generators, or "edges" (those listed in ``edges``, e.g. ``"0-1,1-2"``).
    units : int
        P.

    Raises
    ------
    ConfigError
        If the graph is unknown, an edge cannot be read, or the graph is not connected.
    """
    if units < 1:
        raise ConfigError(f"units = {units}: must be >= 1")
    if kind == "edges":
        result = parse_edges(edges, units)
    else:
        result = _generated(kind, units, seed, probability)
    if not connected(result, units):
        hint = {
            "erdos-renyi": ": give another graph-seed or a larger graph-probability",
            "edges": f": graph-edges = {edges!r} does not join all {units} units",
        }
        raise ConfigError(f"graph = {kind!r} is not connected{hint.get(kind, '')}")
    return result


def _generated(kind: str, units: int, seed: int, probability: float) -> tuple[Edge, ...]:
    import networkx as nx

    graph: Any
    if kind == "ring":
        graph = nx.cycle_graph(units)
    elif kind == "complete":
        graph = nx.complete_graph(units)
    elif kind == "path":
        graph = nx.path_graph(units)
    elif kind == "star":
        graph = nx.star_graph(units - 1)
    elif kind == "grid":
        rows = max(r for r in range(1, math.isqrt(units) + 1) if units % r == 0)
        graph = nx.convert_node_labels_to_integers(
            nx.grid_2d_graph(rows, units // rows), ordering="sorted"
        )
    elif kind == "erdos-renyi":
        graph = nx.erdos_renyi_graph(units, probability, seed=seed)
    else:
        raise ConfigError(f"graph = {kind!r}: choose one of {', '.join(GRAPHS)}")
    return _ordered((int(p), int(m)) for p, m in graph.edges if p != m)


def _ordered(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    return tuple(sorted({(min(edge), max(edge)) for edge in edges}))


def parse_edges(text: str, units: int) -> tuple[Edge, ...]:
    """Parse an edge list (raises ``ConfigError``).

    >>> parse_edges("2-0, 0-1", 3)
    ((0, 1), (0, 2))
    """
    edges: list[Edge] = []
    for part in (piece.strip() for piece in text.split(",")):
        if not part:
            continue
        ends = part.split("-")
        if len(ends) != 2 or not all(end.strip().isdecimal() for end in ends):
            raise ConfigError(f"graph-edges: {part!r} is not an edge, expected e.g. 0-1,1-2")
        p, m = (int(end) for end in ends)
        if p == m or max(p, m) >= units:
            raise ConfigError(f"graph-edges: {part!r} must join two units of 0 ... {units - 1}")
        edges.append((p, m))
    return _ordered(edges)


def connected(edges: Iterable[Edge], units: int) -> bool:
    """Whether the edges join all units."""
    import networkx as nx

    graph = nx.empty_graph(units)
    graph.add_edges_from(edges)
    return bool(nx.is_connected(graph))


def metropolis(edges: Iterable[Edge], units: int) -> Matrix:
    """Return Metropolis weights, a_pm = 1 / (1 + max(deg p, deg m)) on edges, shape (P, P).

    Symmetric, rows and columns sum to 1, and every a_pp is at least 1 / (1 + deg p).
    """
    pairs = _ordered(edges)
    degree = np.zeros(units, int)
    for edge in pairs:
        degree[list(edge)] += 1
    weights = np.zeros((units, units))
    for p, m in pairs:
        weights[p, m] = weights[m, p] = 1.0 / (1.0 + max(degree[p], degree[m]))
    weights[np.diag_indices(units)] = 1.0 - weights.sum(axis=1)
    return weights


def lazy(weights: Matrix) -> Matrix:
    """Return (A + I) / 2: half the step towards the neighbours, half the weight of the noise."""
    return 0.5 * (weights + np.eye(len(weights)))


def second_eigenvalue(weights: Matrix) -> float:
    """Return iota_2 = the spectral radius of A - 11^T / P, eq. (11), for a symmetric A."""
    centred = weights - 1.0 / len(weights)
    return float(np.max(np.abs(np.linalg.eigvalsh(centred))))


def edges_of(weights: Matrix) -> tuple[Edge, ...]:
    """Return the pairs of units that share a weight, in ascending order."""
    pairs = np.argwhere(np.triu(weights, 1) > 0)
    return tuple((int(p), int(m)) for p, m in pairs)


def neighbours(weights: Matrix, unit: int) -> tuple[int, ...]:
    """Return the units a unit exchanges messages with, in ascending order."""
    return tuple(int(m) for m in np.flatnonzero(weights[unit] > 0) if m != unit)


def check_weights(weights: Any) -> Matrix:
    """Return a combination matrix as float64 after checking Assumption 1 and its diagonal.

    Raises
    ------
    ConfigError
        If it is not square, has a negative weight, is not symmetric, a column does not sum to 1,
        a diagonal entry is not positive, or the graph is not connected.
    """
    matrix = np.asarray(weights, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ConfigError(f"combination matrix has shape {matrix.shape}, expected (units, units)")
    if not np.isfinite(matrix).all() or (matrix < 0).any():
        raise ConfigError("combination matrix: weights must be numbers >= 0")
    if not np.allclose(matrix, matrix.T, rtol=0, atol=TOLERANCE):
        raise ConfigError("combination matrix: weights must be symmetric, a_pm = a_mp")
    sums = matrix.sum(axis=0)
    worst = int(np.argmax(np.abs(sums - 1.0)))
    if abs(sums[worst] - 1.0) > TOLERANCE:
        raise ConfigError(
            f"combination matrix: column {worst} sums to {sums[worst]:.9g}, expected 1, or the "
            "noise would not cancel"
        )
    least = int(np.argmin(np.diag(matrix)))
    if matrix[least, least] <= 0:
        raise ConfigError(
            f"combination matrix: weight a_pp of unit {least} is 0, expected > 0 as eq. (47) "
            "divides by it"
        )
    if not connected(edges_of(matrix), len(matrix)):
        raise ConfigError("combination matrix: its graph is not connected")
    return matrix


def combination_matrix(config: Mapping[str, Any]) -> Matrix:
    """Return A for a resolved run config: Metropolis weights on its graph, lazy if set so."""
    edges = graph_edges(
        config["graph"],
        config["units"],
        edges=config["graph-edges"],
        seed=config["graph-seed"],
        probability=config["graph-probability"],
    )
    weights = metropolis(edges, config["units"])
    return lazy(weights) if config["graph-lazy"] else weights
