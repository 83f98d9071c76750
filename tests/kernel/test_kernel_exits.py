"""What may leave a node beside its uploads."""

from __future__ import annotations

import pytest

from privet.kernel import BudgetRefused, NoiseError
from privet.kernel.checks import positive
from privet.kernel.exits import Exits

OPEN, QUIET = Exits(private=False, quiet=False), Exits(private=False, quiet=True)
CLOSED = Exits(private=True, quiet=True)
SECRET = "row 7 is 4.2"


def caught(make: type[Exception]) -> Exception:
    try:
        raise make(SECRET)
    except Exception as error:
        return error


def test_a_private_node_sends_no_numbers() -> None:
    for exits in (OPEN, QUIET):
        exits.numbers("evaluation")
    with pytest.raises(BudgetRefused, match=r"^declines evaluation: it would be an un-noised"):
        CLOSED.numbers("evaluation")


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("make", [ValueError, KeyError, NoiseError])
def test_a_quiet_node_sends_no_text_of_others(make: type[Exception], own: bool) -> None:
    error = caught(make)
    for exits in (QUIET, CLOSED):
        assert (
            exits.line(error, SECRET, library_error=own)
            == f"{make.__name__} (text withheld: private run)"
        )
    assert SECRET in OPEN.line(error, SECRET, library_error=own)


def test_a_quiet_node_sends_what_the_library_says_itself() -> None:
    with pytest.raises(ValueError, match="rho") as raised:
        positive(rho=-1.0)
    text = str(raised.value)
    assert CLOSED.line(raised.value, text, library_error=True) == text
    assert "withheld" in CLOSED.line(raised.value, text, library_error=False)


def test_an_error_without_a_text_has_its_name() -> None:
    assert OPEN.line(ValueError(), "", library_error=False) == "ValueError"
    assert OPEN.line(KeyError("x"), "'x'", library_error=False) == "KeyError: 'x'"
