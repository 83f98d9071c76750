"""Numbers and texts as people read them, in pages, tables and log lines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from html import escape
from typing import Any

Number = int | float

_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
TIMES = "\N{NO-BREAK SPACE}\N{MULTIPLICATION SIGN}\N{NO-BREAK SPACE}"
MINUS = "\N{MINUS SIGN}"


def text(value: object) -> str:
    """Return any value as HTML text, safe in elements and in quoted attributes."""
    return escape(str(value), quote=True)


def byte_unit(largest: Number) -> tuple[str, int]:
    """Return the decimal unit (1 kB = 1000 B) in which the largest value is 1 ... 999."""
    power = 0
    while (
        power < len(_BYTE_UNITS) - 1 and math.isfinite(largest) and largest >= 1000 ** (power + 1)
    ):
        power += 1
    return _BYTE_UNITS[power], 1000**power


def power_of_ten(exponent: int) -> str:
    """Return 10 to the exponent with a superscript, without markup."""
    return "10" + str(exponent).translate(_SUPERSCRIPT)


def number(value: Number) -> str:
    """Return a number with four significant digits; exact when it is an integer below 1e15."""
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    if float(value).is_integer() and abs(value) < 1e15:
        shown = f"{int(value):,}".replace(",", "\N{NARROW NO-BREAK SPACE}")
    else:
        shown = _with_power(f"{value:.4g}")
    return shown.replace("-", MINUS, 1) if value < 0 else shown


def _with_power(shown: str) -> str:
    """Return a number's text with its exponent, where it has one, as a power of ten."""
    mantissa, _, exponent = shown.partition("e")
    if not exponent:
        return shown
    power = power_of_ten(int(exponent))
    return power if mantissa == "1" else f"{mantissa}{TIMES}{power}"


def round_ticks(low: float, high: float) -> list[float]:
    """Return the ends of 3 to 8 equal steps, 1, 2 or 5 times a power of ten, that cover a span."""
    if low == high:
        low, high = low - 1.0, high + 1.0
    power = 10.0 ** math.floor(math.log10((high - low) / 4.0))
    step = next(one * power for one in (1, 2, 5, 10) if (high - low) / (one * power) <= 8.0)
    return [step * at for at in range(math.floor(low / step), math.ceil(high / step) + 1)]


def ticks_until(last: float) -> list[float]:
    """Return those of `round_ticks` from 0 to a time, at most."""
    return [tick for tick in round_ticks(0.0, last) if tick <= last]


def measure(value: Number) -> str:
    """Return a measured number with four significant digits, zeros at the end among them."""
    if value == 0 or not math.isfinite(value):
        return number(value)
    mantissa, _, exponent = f"{value:#.4g}".partition("e")
    power = f"{TIMES}{power_of_ten(int(exponent))}" if exponent else ""
    return f"{mantissa.removesuffix('.')}{power}".replace("-", MINUS, 1)


def byte_count(value: Number) -> str:
    """Return a number of bytes in the unit that fits."""
    unit, scale = byte_unit(value)
    return f"{value / scale:.3g} {unit}" if scale > 1 else f"{number(value)} {unit}"


def loss(value: float) -> str:
    """Return a loss with four decimals, or, where it is very large, three significant digits."""
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.2e}"


def fraction(value: Number) -> str:
    """Return a fraction as a percentage with two decimals."""
    return f"{100 * value:.2f} %" if math.isfinite(value) else number(value)


def duration(value: Number) -> str:
    """Return seconds, as minutes or hours where that reads better."""
    if not math.isfinite(value) or value < 60:
        return f"{value:.3g} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def epsilon(value: Any) -> str:
    """Return an epsilon with three significant digits, rounded up: never less than what was spent.

    A string that is not a number is returned unchanged.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return str(value)
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return "not stated"
    if value == 0 or not math.isfinite(value):
        return number(value)
    exact = Decimal(repr(float(value)))
    rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=ROUND_CEILING)
    plain = f"{rounded:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def delta(value: float, drawn: float = 0.0) -> str:
    """Return a delta with what drawing the noise adds, where that is a thousandth of it or more."""
    if drawn < value / 1000:
        return f"{value:g}"
    return f"{value:g} + {rounded_up(drawn)}"


def summed_delta(entry: Mapping[str, Any]) -> str:
    """Return the whole delta of an account's entry: never below what holds of the noise drawn."""
    ideal, drawn = entry.get("delta"), entry.get("drawn-delta")
    if not (isinstance(ideal, float) and isinstance(drawn, int | float) and drawn > 0):
        return stated(ideal)
    return f"{stated(ideal)} + {_with_power(rounded_up(drawn))}"


def rounded_up(value: float) -> str:
    """Return a number >= 0 with two significant digits, rounded up."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    exact = Decimal(value)
    step = Decimal(1).scaleb(exact.adjusted() - 1)
    return f"{float(exact.quantize(step, rounding=ROUND_CEILING)):.2g}"


def setting(value: Any) -> str:
    """Return a value of a summary or configuration as one line of text."""
    if value is None:
        return "not stated"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value))
    return str(value)


def stated(value: Any) -> str:
    """Return a quantity, formatted by `number` if it is one and by `setting` otherwise."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value) if known else setting(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one, keys joined by dots."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result


def kept(best: Mapping[str, Any]) -> str:
    """Return a summary's entry on the model of the best round as one line."""
    value, metric = best["value"], best["metric"]
    written = fraction(value) if metric == "accuracy" else number(value)
    line = f"{best['file']} is of round {best['round']}, the best {metric} ({written})"
    return f"{line}; {best['privacy']}" if "privacy" in best else line
