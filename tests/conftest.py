"""What is made once for all tests."""

from __future__ import annotations

import pytest

from support.wheel import Built, build_wheel


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Return the wheel of this tree, built once."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))
