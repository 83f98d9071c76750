"""FedPDM's printed sensitivity (35) is too small for the dual that the paper has.

A private dual is hidden state that differs between neighbours. The paper's recursion, written down
again, is played by two agents whose mean gradients always differ by as much as a clip G allows.
"""

from __future__ import annotations

import numpy as np
import pytest

from privet.privacy import Facts, NoCertificateError, as_printed
from privet.wire import algorithm

CLIP, RHO = 1.0, 2.0


def uploads(step: float, steps: int, signs: np.ndarray) -> tuple[float, float]:
    """Return y of the last round of either agent; round t's gradients are +-G signs[t]."""
    ends = []
    for side in (1.0, -1.0):
        dual = x = 0.0
        for sign in signs:
            x = 0.0  # the broadcast, the same for both
            for _ in range(steps):
                x -= step * (side * sign * CLIP - dual + RHO * x)
            dual -= RHO * x
        ends.append(x - dual / RHO)
    return ends[0], ends[1]


@pytest.mark.parametrize(("step", "steps"), [(0.05, 2), (0.1, 1), (0.15, 5), (0.2, 10)])
def test_the_printed_formula_is_exceeded(step: float, steps: int) -> None:
    k = 1 - (1 - RHO * step) ** steps
    # Worst case: gradients of one sign, of the other in the last round if that adds up.
    signs = np.ones(400)
    gaps = []
    for last in (1.0, -1.0):
        signs[-1] = last
        one, two = uploads(step, steps, signs)
        gaps.append(abs(one - two))
    found = max(gaps)
    assert found == pytest.approx(2 * CLIP / RHO * (2 * k + abs(2 * k - 1)), rel=1e-9)
    printed = as_printed.fed_pdm_sensitivity(clip=CLIP, rho=RHO, step_size=step, local_steps=steps)
    assert found / printed > 1.2
    if k < 0.5:
        assert found / printed == pytest.approx(1 / (2 * k), rel=1e-9)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("clipping", ["batch", "example"])
def test_the_papers_dual_has_no_certificate(steps: int, clipping: str) -> None:
    half = algorithm("fed-pdm").load_agent()(
        clip=CLIP, noise_scale=1.0, dual="private", max_local_steps=steps, clipping=clipping,
        rho=RHO, step_size_base=0.1,
    )  # fmt: skip
    with pytest.raises(NoCertificateError, match="private dual"):
        half.release(Facts(10, 10.0, 2, loss="logistic"), 1)
