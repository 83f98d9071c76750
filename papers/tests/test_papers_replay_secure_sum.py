"""Worked instances of GFL replayed through masked uploads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet.agents.masking import Masking
from privet.core import ConfigError
from privet.wire import ring
from studies.replays import replay_file
from support.paths import golden


def masked_instance(name: str) -> dict[str, Any]:
    """Return an instance that gives pair masks, with the secure sum switched on."""
    (path,) = golden(name)
    spec: dict[str, Any] = json.loads(path.read_text())
    spec["config"]["secure-sum"] = True
    return spec


@pytest.mark.parametrize("name", ["gfl-none.json", "gfl-homomorphic.json"])
def test_given_pair_masks_cancel(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    """The unit means are those of the instance; what leaves an agent is x + mask and x - mask."""
    spec = masked_instance(name)
    sent: list[tuple[str, int, Any, Any]] = []
    payload = Masking.payload

    def keep(self: Masking, upload: Any) -> bytes:
        data = payload(self, upload)
        sent.append((self.agent, self.binding.round, upload["x"], ring.from_bytes(data)))
        return data

    monkeypatch.setattr(Masking, "payload", keep)
    path = tmp_path / name
    path.write_text(json.dumps(spec))
    assert replay_file(path).max_abs_error <= 1e-9
    assert len(sent) == 6 * len(spec["rounds"])
    for agent, number, x, words in sent:
        unit, place = divmod(int(agent), 2)
        mask = np.array(spec["noise"]["pair_masks"][number - 1][unit])
        wanted = x + mask if place == 0 else x - mask
        assert np.allclose(ring.decode(words)["x"], wanted, rtol=0, atol=2.0**-40)
        assert np.abs(mask).max() > 1e-3


def test_a_masked_instance_without_masks_is_refused(tmp_path: Path) -> None:
    spec = masked_instance("gfl-homomorphic.json")
    del spec["noise"]["pair_masks"]
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(spec))
    with pytest.raises(ConfigError, match="pair_masks"):
        replay_file(path)
