"""``privet predict`` and ``privet export`` of a finished run."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from privet.core.files import write_npz
from support.cli import privet
from support.patients import patients, run


def test_classes_and_probabilities_of_a_table(tmp_path: Path) -> None:
    frame = patients()
    model = run(tmp_path, frame)
    table = tmp_path / "rows.csv"
    frame.iloc[:7].to_csv(table, sep=";", decimal=",", index=False)
    code, out, err = privet("predict", model.path.parent, table)
    assert (code, err) == (0, "not used by the model: outcome\n")
    lines = list(csv.DictReader(io.StringIO(out)))
    assert [line["prediction"] for line in lines] == model.predict(frame.iloc[:7]).tolist()
    found = [[float(line[f"probability {name}"]) for name in model.classes] for line in lines]
    assert np.abs(np.array(found) - model.predict_proba(frame.iloc[:7])).max() < 1e-12


def test_few_rows_with_three_decimals_are_no_thousands(tmp_path: Path) -> None:
    """One column of the table shows that its commas are decimal ones."""
    frame = patients()
    model = run(tmp_path, frame)
    rows = frame[list(model.columns)].iloc[:2].assign(age=[61.5, 40.25], dose=[1.234, 2.345])
    table = tmp_path / "rows.csv"
    rows.to_csv(table, sep=";", decimal=",", index=False)
    said = privet("predict", model.path, table)
    assert said.code == 0
    first = [line.partition(",")[0] for line in said.out.splitlines()[1:]]
    assert first == model.predict(rows).tolist()
    rows[["dose"]].assign(age=61, year=2024, ward="east", site="main", code="A").to_csv(
        table, sep=";", decimal=",", index=False
    )
    assert (
        "column dose: '1,234' may have separators of thousands"
        in privet("predict", model.path, table).err
    )


def test_values_of_a_regression_into_a_file(tmp_path: Path) -> None:
    frame = patients().drop(columns="outcome")
    model = run(tmp_path, frame, label_column="dose")
    table, out = tmp_path / "rows.parquet", tmp_path / "found.csv"
    frame[list(model.columns)].to_parquet(table)
    assert privet("predict", model.path, table, "--out", out) == (0, f"{out}\n", "")
    header, *values = out.read_text().split()
    assert header == "prediction"
    assert [float(value) for value in values] == model.predict(frame).tolist()


def test_an_export_says_where_it_is(tmp_path: Path) -> None:
    model = run(tmp_path, patients())
    file = model.path.with_name("model.skops")
    assert privet("export", model.path.parent, "--to", "sklearn") == (0, f"{file}\n", "")
    assert file.exists()


def test_an_output_that_is_a_device_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    model = run(tmp_path, patients())
    table, device = tmp_path / "rows.csv", tmp_path / "device.csv"
    patients().to_csv(table, index=False)
    device.symlink_to("/dev/null")
    assert privet("predict", model.path, table, "--out", device).code == 0
    assert privet("export", model.path, "--to", "joblib", "--out", device).code == 0
    assert device.is_symlink()
    code, out, err = privet("predict", model.path, table, "--out", "/dev/full")
    assert (code, out) == (2, "")
    assert err.endswith("privet: --out /dev/full: No space left on device\n")
    assert Path("/dev/full").is_char_device()


def test_what_cannot_be_predicted_is_one_line(tmp_path: Path) -> None:
    frame = patients()
    model = run(tmp_path, frame)
    table = tmp_path / "rows.csv"
    frame.assign(ward="south").to_csv(table, index=False)
    old = tmp_path / "old"
    old.mkdir()
    write_npz(old / "model.npz", {"x": np.zeros(3)})
    for words, says in (
        (("predict", model.path, table), f"{table}: column ward: row 1: 'south' is not one of"),
        (("predict", model.path, tmp_path / "none.csv"), "none.csv: no such file"),
        (("predict", tmp_path, table), "expected the folder of a run that is over, or its model"),
        (("predict", old, table), "is of an older format"),
        (("predict", model.path, table, "--unknown", "zero"), "unknown = 'zero': expected one of"),
        (("export", model.path, "--to", "joblib", "--out", "/proc/no/m"), "--out /proc/no/m: No"),
        (("export", model.path, "--to", "pmml"), "--to 'pmml': choose one of sklearn, joblib"),
    ):
        code, out, err = privet(*words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert says in err


def test_the_pickle_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "pickle" in privet("export", "--help").out


@pytest.mark.parametrize(("step", "rounds"), [(1e6, 3), (1e6, 30), (0.1, 3)])
def test_a_run_that_diverged_ends_with_3_and_offers_no_prediction(
    step: float, rounds: int, tmp_path: Path
) -> None:
    """Whether its rounds are over before the model overflows, or not."""
    table = tmp_path / "rows.csv"
    patients().to_csv(table, index=False)
    code, out, _ = privet(
        *("run", "algorithm=fed-dyn", "dataset=csv", f"data-path={table}", "num-agents=3"),
        *("label-column=outcome", f"step-size-base={step}", f"num-server-rounds={rounds}"),
        *(f"output-dir={tmp_path}", "baseline-seconds=0", "missing=mean"),
    )
    assert code == (3 if step == 1e6 else 0)
    assert ("predict new rows" in out) is (step != 1e6)
