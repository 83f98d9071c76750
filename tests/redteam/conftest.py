"""What several attacks need."""

from __future__ import annotations

from importlib import import_module

import pytest


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no page: its plots are four fifths of a short run's time."""
    # By its path, as the package has a function of the module's name.
    module = import_module("privet.server_apps.execute")
    monkeypatch.setattr(module, "write_report", lambda *_: None)
