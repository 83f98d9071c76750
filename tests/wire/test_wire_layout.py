"""The user's arrays as one vector and back, and files that are whole or not there."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from privet.core import ConfigError, WireError
from privet.core.files import read_npz, write_npz
from privet.wire import Layout
from privet.wire import layout as layouts


def test_layout_flattens_and_restores_the_users_arrays() -> None:
    arrays = ArrayRecord(
        {
            "conv.weight": Array(np.arange(6, dtype="f4").reshape(2, 3)),
            "conv.bias": Array(np.array([7.0, 8.0])),
        }
    )
    layout = Layout.of(arrays)
    vector = layout.flatten(arrays)
    assert (layout.dim, vector.dtype) == (8, np.dtype("f8"))
    back = layout.restore(vector)
    for name in arrays:
        assert np.array_equal(back[name].numpy(), arrays[name].numpy())
        assert back[name].numpy().dtype == arrays[name].numpy().dtype


def test_layout_of_single_precision_stays_single() -> None:
    arrays = ArrayRecord({"x": Array(np.ones(2, "f4"))})
    assert Layout.of(arrays).flatten(arrays).dtype == np.float32


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [(ArrayRecord(), "empty"), (ArrayRecord({"n": Array(np.ones(2, "i8"))}), "'n' is int64")],
)
def test_layout_refuses_what_cannot_be_trained(arrays: ArrayRecord, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Layout.of(arrays)


@pytest.mark.parametrize("shape", [(10**13,), (2,), (-1,), (2**62, 4), (1, 1), ()])
def test_a_shape_that_the_bytes_do_not_hold_is_refused_before_memory_is_taken(
    shape: tuple[int, ...],
) -> None:
    one = Array(np.ones(1))
    claimed = Array(dtype="float64", shape=shape, stype=one.stype, data=one.data)
    arrays = ArrayRecord({"w": Array(np.ones(3)), "x": claimed})
    with pytest.raises((ConfigError, WireError), match="'x'"):
        Layout.of(arrays).flatten(arrays)


@pytest.mark.parametrize("held", [np.array(["1"]), np.ones(1, "i8"), np.ones(1, "c16")])
def test_numbers_of_another_kind_than_was_said_are_refused(held: Any) -> None:
    data = Array(held)
    arrays = ArrayRecord(
        {"x": Array(dtype="float16", shape=(1,), stype=data.stype, data=data.data)}
    )
    with pytest.raises(WireError, match="'x' does not hold"):
        Layout.of(arrays).flatten(arrays)


@pytest.mark.parametrize("text", ["f8," * 50_000 + "f8", "(" + "1," * 50_000 + ")f8", "{", "", "O"])
def test_a_text_that_is_no_dtype_of_floats_is_not_parsed(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Array(np.ones(1))
    strange = Array(dtype=text, shape=(1,), stype=one.stype, data=one.data)
    monkeypatch.delattr(layouts.np, "dtype")  # which takes seconds of some texts
    with pytest.raises(ConfigError, match=r"'x' is .*parameters must be floats") as caught:
        Layout.of(ArrayRecord({"x": strange}))
    assert len(str(caught.value)) < 1000
    assert Layout.of_floats(ArrayRecord({"w": one, "x": strange})).names == ("w",)


def layout(**shapes: tuple[int, ...]) -> Layout:
    names = tuple(name.replace("_", ".") for name in shapes)
    return Layout(names, tuple(shapes.values()), ("float32",) * len(names))


def test_layouts_differ_in_names_shapes_and_number() -> None:
    own = layout(conv_weight=(2, 3), conv_bias=(2,))
    assert own.difference(layout(conv_weight=(2, 3), conv_bias=(2,))) == ""
    assert own.difference(layout(module_conv_weight=(2, 3), module_conv_bias=(2,))) == ""
    assert own.difference(layout(x=(8,))) == ""
    turned = own.difference(layout(conv_weight=(3, 2), conv_bias=(2,)))
    assert turned == "'conv.weight' of shape (2, 3) where 'conv.weight' of shape (3, 2) is expected"
    permuted = own.difference(layout(conv_bias=(2,), conv_weight=(2, 3)))
    assert permuted.startswith("'conv.weight' of shape (2, 3) where 'conv.bias'")
    fewer = own.difference(layout(conv_weight=(2, 3)))
    assert fewer == "'conv.bias' of shape (2,) where nothing is expected"
    again = Layout.from_json(own.to_json())
    assert (again.names, again.shapes) == (own.names, own.shapes)


def test_the_work_of_choosing_a_part_grows_with_the_number_of_names_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = layout(coef=(3,), intercept=(1,))
    seen = []
    monkeypatch.setattr(layouts, "_all_begin", lambda names, prefix: seen.append(prefix) or True)
    many = Layout(tuple(f"n{i}" for i in range(500)), ((1,),) * 500, ("float64",) * 500)
    assert many.chosen(part) is None
    assert not seen
    monkeypatch.undo()
    around = layout(count=(), module_coef=(3,), module_intercept=(1,))
    assert around.chosen(part) is None  # not all names have the prefix
    within = layout(module_count=(), module_coef=(3,), module_intercept=(1,)).chosen(part)
    assert within is not None
    assert within.names == ("module.coef", "module.intercept")
    bare = layout(count=(), coef=(3,), intercept=(1,))
    shorter = bare.chosen(layout(module_coef=(3,), module_intercept=(1,)))
    assert shorter is not None
    assert shorter.names == ("coef", "intercept")


@pytest.mark.parametrize("text", ["", "3", "[[1]]", '[["a", 3]]', '[["a", ["b"]]]', "[" * 99_999])
def test_what_is_no_layout_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        Layout.from_json(text)
    assert not isinstance(caught.value, ConfigError)


def test_half_precision_is_single_on_the_wire() -> None:
    arrays = ArrayRecord({"x": Array(np.ones(2, "f2"))})
    held = Layout.of(arrays)
    assert held.flatten(arrays).dtype == np.float32
    assert held.restore(np.ones(2, "f4"))["x"].numpy().dtype == np.float16


def test_failed_write_leaves_the_previous_file(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "file.npz"
    write_npz(path, {"a": np.ones(3)})
    before = path.read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("privet.core.files.npy.write_array_header_1_0", full)
    with pytest.raises(OSError, match="No space left"):
        write_npz(path, {"a": np.zeros(3)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_archive_of_arrays_is_a_value_error(tmp_path: Path) -> None:
    single, texts, junk = (tmp_path / name for name in ("single.npz", "texts.npz", "junk.npz"))
    with single.open("wb") as file:
        np.save(file, np.zeros(3))
    with zipfile.ZipFile(texts, "w") as archive:
        archive.writestr("x", b"no numpy array")
    junk.write_bytes(b"PK\x03\x04 cut off")
    for path in (single, texts, junk):
        with pytest.raises(ValueError, match=r"^(\w+: .*|x is not an array)$"):
            read_npz(path)
