"""A stack's gradients have, row by row, the bits that each model gives alone."""

import numpy as np
import pytest

from privet.problems import (
    L2,
    BinaryLogistic,
    MultinomialLogistic,
    Nonconvex,
    NoRegularizer,
    OneClassLogistic,
    RidgeRegression,
    stacks,
)
from privet.problems.stacks import (
    LARGEST_MEMBER,
    Observed,
    Stack,
    stack_key,
    total_gradient,
)

TERMS = (NoRegularizer(), L2(0.3), Nonconvex(0.5))


def models(loss, count, n, d, dtype, term, classes=3):
    rng = np.random.default_rng([n, d, classes])
    made = []
    for _ in range(count):
        features = (3.0 * rng.standard_normal((n, d))).astype(dtype)
        divisor = float(rng.integers(1, 1000))
        if loss is BinaryLogistic:
            labels = np.where(rng.random(n) < 0.5, -1, 1)
            made.append(loss(features, labels, regularizer=term, divisor=divisor))
        elif loss is RidgeRegression:
            targets = rng.standard_normal(n).astype(dtype)
            made.append(loss(features, targets, regularizer=term, divisor=divisor))
        else:
            labels = rng.integers(0, classes, n)
            made.append(loss(features, labels, classes, regularizer=term, divisor=divisor))
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [BinaryLogistic, RidgeRegression, MultinomialLogistic])
@pytest.mark.parametrize("n", [2, 3, 7, 16, 33, 250])
def test_rows_have_the_bits_of_each_model(loss, n, dtype):
    for d in (2, 3, 5, 8, 17, 40):
        for classes in (2, 3, 10) if loss is MultinomialLogistic else (2,):
            for term in TERMS:
                alone = models(loss, 5, n, d, dtype, term, classes)
                assert len({stack_key(model) for model in alone}) == 1
                stack = Stack(alone)
                rng = np.random.default_rng(n)
                x = rng.standard_normal(stack.shape).astype(dtype)
                rows = rng.integers(n, size=(5, 4))
                together, sampled = stack.gradient(x), stack.gradient(x, rows)
                for i, model in enumerate(alone):
                    assert together[i].tobytes() == model.gradient(x[i]).tobytes()
                    assert sampled[i].tobytes() == model.gradient(x[i], rows[i]).tobytes()
                assert stack.agrees()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [BinaryLogistic, RidgeRegression, MultinomialLogistic])
@pytest.mark.parametrize("n", [2, 7, 33, 600])
def test_clipped_rows_have_the_bits_of_each_model(loss, n, dtype):
    for d, term in ((2, L2(0.3)), (5, NoRegularizer()), (40, L2(0.3))):
        alone = models(loss, 5, n, d, dtype, term)
        features = alone[3].features.copy()
        features[0] *= 1e-30  # limits of another size, and below an example that counts as zero
        features[1] = np.finfo(dtype).max / 8
        alone[3] = alone[3].with_features(features)
        stack = Stack(alone)
        rng = np.random.default_rng(n)
        x = rng.standard_normal(stack.shape).astype(dtype)
        x[4, 0] = np.inf
        rows = np.stack([rng.permutation(n)[: min(n, 4)] for _ in alone])
        part = stack.take([3, 1, 4])
        for norm in ("l1", "l2"):
            for clip in (1e-3, 0.7, 1e3):
                for which in (None, rows):
                    for clipping in ("example", "batch") if norm == "l2" else ("example",):
                        values, rest = stack.clipped_term(x, clip, norm, which, clipping)
                        some = None if which is None else which[[3, 1, 4]]
                        taken, _ = part.clipped_term(x[[3, 1, 4]], clip, norm, some, clipping)
                        assert taken.tobytes() == values[[3, 1, 4]].tobytes()
                        for i, model in enumerate(alone):
                            own = None if which is None else which[i]
                            value, term_ = model.clipped_term(x[i], clip, norm, own, clipping)
                            assert values[i].tobytes() == value.tobytes()
                            assert (rest is None) == (term_ is None)
                            assert rest is None or rest[i].tobytes() == term_.tobytes()


def test_a_stack_of_several_divisors_has_none():
    same, other = models(RidgeRegression, 2, 3, 2, np.float64, NoRegularizer())
    assert Stack([same, same]).divisor == same.divisor
    with pytest.raises(ValueError, match="divisors of their own"):
        _ = Stack([same, other]).divisor


def test_a_part_of_a_stack_is_the_stack_of_a_part():
    alone = models(BinaryLogistic, 6, 20, 4, np.float64, L2(0.1))
    part, picked = Stack(alone).take([4, 1]), Stack([alone[4], alone[1]])
    x = np.linspace(-1, 1, 8).reshape(2, 4)
    assert part.gradient(x).tobytes() == picked.gradient(x).tobytes()
    assert np.array_equal(part.moduli.smoothness, picked.moduli.smoothness)
    assert part.moduli.smoothness[0, 0] == alone[4].moduli.smoothness


class Own(BinaryLogistic):
    """A loss of one's own, of which nothing is known."""


@pytest.mark.parametrize("loss", [BinaryLogistic, RidgeRegression, MultinomialLogistic])
def test_shared_data_are_in_memory_once_and_give_the_same_bits(loss):
    alone, sharing = (models(loss, 5, 7, 3, np.float32, L2(0.3)) for _ in range(2))
    stack = Stack(sharing)
    stack.share()
    x = np.random.default_rng(1).standard_normal(alone[0].dim).astype(np.float32)
    for i, (one, other) in enumerate(zip(sharing, alone, strict=True)):
        assert np.shares_memory(one._design, stack._designs[i])
        assert np.shares_memory(one._targets, stack._targets[i])
        if other.features is other._design:
            assert one.features is one._design
        assert one.gradient(x).tobytes() == other.gradient(x).tobytes()
        assert one.with_divisor(3.0).value(x) == other.with_divisor(3.0).value(x)
        assert one.features.tobytes() == other.features.tobytes()
        assert not one.features.flags.writeable


def test_what_is_in_no_stack():
    rng = np.random.default_rng(0)
    signs = np.ones(2)
    assert stack_key(object()) is None
    assert stack_key(OneClassLogistic(np.eye(2), [0, 1], 2)) is None
    assert stack_key(Own(np.eye(2), signs)) is None
    assert stack_key(RidgeRegression(np.ones((2, 1)), signs)) is None
    assert stack_key(RidgeRegression(np.ones((1, 2)), signs[:1])) is None
    large = rng.standard_normal((2, LARGEST_MEMBER // 8))
    assert stack_key(RidgeRegression(large, signs)) is None
    assert stack_key(RidgeRegression(np.eye(2), signs)) != stack_key(
        RidgeRegression(np.eye(2), signs, regularizer=L2(0.1))
    )


def test_a_stack_refuses_vectors_of_another_shape():
    stack = Stack(models(RidgeRegression, 2, 3, 2, np.float64, NoRegularizer()))
    with pytest.raises(ValueError, match=r"x must have shape \(2, 2\), found \(2,\)"):
        stack.gradient(np.zeros(2))


def test_an_observed_member_tells_where_its_gradient_is_taken():
    alone = models(BinaryLogistic, 3, 6, 2, np.float64, L2(0.1))
    seen = []
    stack = Stack([alone[0], Observed(alone[1], lambda x: seen.append(x.copy())), alone[2]])
    assert stack.agrees()
    assert not seen
    x = np.arange(6.0).reshape(3, 2)
    assert stack.gradient(x).tobytes() == Stack(alone).gradient(x).tobytes()
    assert stack.take([2, 1]).gradient(x[:2])[1].tobytes() == alone[1].gradient(x[1]).tobytes()
    assert [point.tolist() for point in seen] == [[2.0, 3.0], [2.0, 3.0]]
    single = Observed(alone[0], seen.append)
    assert single.gradient(x[0]).tobytes() == alone[0].gradient(x[0]).tobytes()
    assert len(seen) == 3
    assert single.num_examples == 6
    product = single.hessian_product(x[0])
    assert len(seen) == 3
    assert product(x[1]).tobytes() == alone[0].hessian_product(x[0])(x[1]).tobytes()
    assert [point.tolist() for point in seen[3:]] == [[0.0, 1.0]]
    assert not hasattr(Observed(object(), seen.append), "hessian_product")


def test_the_total_gradient_is_the_sum_in_order_of_what_each_gives_alone(monkeypatch):
    """In kept stacks of two, beside problems that fit into none."""
    counts = (6, 5, 6, 1, 6, 6, 6, 5)
    alone = [models(BinaryLogistic, 1, n, 2, np.float64, L2(0.1))[0] for n in counts]
    monkeypatch.setattr(stacks, "STACK_BYTES", 2 * alone[0].features.nbytes)
    points = np.array([[0.3, -2.0], [1.0, 4.0]])
    expected = [np.sum([model.gradient(x) for model in alone], axis=0) for x in points]
    made = []

    def sums():
        total = total_gradient(alone)
        return [total(x) for x in points]

    monkeypatch.setattr(stacks, "Stack", lambda group: made.append(len(group)) or Stack(group))
    assert np.array(sums()).tobytes() == np.array(expected).tobytes()
    assert sorted(made) == [1, 2, 2, 2]  # once for both points
    with monkeypatch.context() as patch:
        patch.setattr(Stack, "gradient", lambda stack, x: np.zeros(stack.shape))
        patch.setattr(Stack, "_gradient", lambda stack, x, rows: np.zeros(stack.shape))
        assert np.array(sums()).tobytes() == np.array(expected).tobytes()  # of other sums
    made.clear()
    monkeypatch.setattr(stacks, "KEPT_BYTES", sum(model.features.nbytes for model in alone) // 2)
    assert np.array(sums()).tobytes() == np.array(expected).tobytes()
    assert not made
