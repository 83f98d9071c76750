"""Train Fed-PLT over ten agents in Flower's Ray simulation, and leave no process behind.

``make run`` calls it, with `tests` on Python's path.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from privet.server_apps.execute import headline
from support.simulation import SimulationError, run_simulation

ROOT = Path(__file__).resolve().parents[1]
AGENTS = 10


def main() -> str | None:
    """Run the app of the checkout; return why it failed."""
    runs, lines = Path("runs").resolve(), list[str]()

    def show(line: str) -> None:
        lines.append(line)
        text = line.split(" : ", 1)[-1].strip()
        if text.startswith(("round ", "run failed", "agent ", "node ")):
            print(text, flush=True)

    print(f"fed-plt: {AGENTS} agents, starting Flower's simulation (Ray) ...", flush=True)
    try:
        config = {"num-agents": AGENTS, "output-dir": str(runs)}
        verdict = run_simulation(ROOT, num_supernodes=AGENTS, run_config=config, on_line=show)
    except SimulationError as error:
        return "\n".join([*lines, str(error)])
    if not verdict.completed:
        return "\n".join([*lines, f"{verdict.status} {verdict.details}"])
    summary = json.loads((runs / verdict.run_id / "summary.json").read_text())
    for label, value in headline(summary).items():
        print(f"{label}: {value}")
    return None


if __name__ == "__main__":
    sys.exit(main())
