# %% [markdown]
# # Which algorithm, on which data?
#
# Algorithms on the same agents: exactness, rounds, bytes, and what a privacy budget leaves of it.
# Every cell is plain Python; editors that know `# %%` run it as a notebook, and
# `python examples/compare_algorithms.py` runs it as a whole. The report goes to
# `runs/compare.html`.

# %%
import json
import math
from pathlib import Path

from privet.server_apps import write_report
from privet.sim import quiet, run_inline

quiet()
RUNS = Path("runs").resolve()

# %% [markdown]
# ## The data
#
# Breast cancer, dealt by label: most of the ten agents see one class only. The keys are those of
# `flwr run --run-config` and of the `privet run` command.

# %%
COMMON = {
    "dataset": "breast-cancer",
    "partition": "label",
    "num-agents": 10,
    "num-server-rounds": 60,
    "regularizer-weight": 0.05,  # at which ten gradient steps a round are enough for all of them
    "checkpoint-every": 0,
    "output-dir": str(RUNS),
}
LOCAL = {"step-size-base": 0.5, "step-size-rule": "constant", "max-local-steps": 10}
CASES = {
    "fed-plt": {"rho": 3.0, "local-epochs": 10},
    "fed-pdm": {"rho": 0.5, "dual": "public", "aggregation": "table", **LOCAL},
    "scaffold": LOCAL,
    "fed-dyn": {"fed-dyn-alpha": 0.1, **LOCAL},
}


def compare(title, cases, **more):
    """Run every case and print a line each; `distance` is to the optimum of the pooled data."""
    print(
        f"\n{title}\n{'algorithm':<12}{'accuracy':>10}{'distance':>10}{'kB up':>8}{'epsilon':>10}"
    )
    folders = {}
    for name, own in cases.items():
        config = {**COMMON, **own, **more, "algorithm": name}
        finished = run_inline(config, f"{title.replace(' ', '-')}-{name}")
        folders[name] = finished.folder
        found = finished.summary
        account = json.loads((finished.folder / "privacy.json").read_text())
        epsilon = float(account["accounts"][0]["epsilon"]) if account["private"] else math.inf
        print(
            f"{name:<12}{found['accuracy']:>10.3f}{found['distance-to-optimum']:>10.1e}"
            f"{found['bytes-up'] / 1000:>8.1f}{epsilon:>10.2f}"
        )
    return folders


# %% [markdown]
# ## All agents in every round, then half of them

# %%
everyone = compare("everyone", CASES)
half = compare("half", CASES, participation="fraction", fraction=0.5)

# %% [markdown]
# ## How many rounds it took
#
# A run's `history.jsonl` has a line a round; here, the first round whose squared gradient norm at
# the mean model is below 1e-4.

# %%
for name, folder in half.items():
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    reached = [done["round"] for done in history if done["stationarity"] <= 1e-4]
    print(f"{name}: {f'round {reached[0]}' if reached else 'not within these rounds'}")

# %% [markdown]
# ## The same total epsilon for all
#
# The noise is solved for a total of 8 towards the coordinator, at delta 1e-5. Rows are clipped to a
# public norm, each example's gradient to 1.

# %%
BUDGET = {"target-epsilon": 8.0, "clip": 1.0, "row-norm": 5.0, "num-server-rounds": 10}
private = compare(
    "private",
    {
        "fed-plt": {"local-solver": "noisy-gd", "local-epochs": 5, "rho": 3.0},
        "fed-pdm": {"preset": "private"},
        "dp-fedsgd": {"step-size-base": 0.5},
    },
    **BUDGET,
)

# %% [markdown]
# ## One page
#
# `privet report FOLDER ...` writes the same from run folders of any engine.

# %%
print("report:", write_report([*half.values(), *private.values()], RUNS / "compare.html"))
