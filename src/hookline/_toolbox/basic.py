"""Tools without files or a network: a calculator and a clock."""

from __future__ import annotations

import ast
import math
import operator
import time
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from .._base.text import did_you_mean
from ..tools._tool import tool

_MAX_EXPRESSION = 500
_MAX_BITS = 10_000  # about 3,000 digits

_NAMES = {"pi": math.pi, "e": math.e, "tau": math.tau}
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-"})  # noqa: RUF001 - as people write it


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * abs(exponent) > _MAX_BITS:
        raise OverflowError
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("the result is not a real number")
    return result


def _round(value: Any, digits: int = 0) -> Any:
    if abs(digits) > 300:
        raise ValueError("too many digits to round to")
    return round(value, digits) if digits else round(value)


def _factorial(n: Any) -> int:
    if n > 1000:
        raise OverflowError
    return math.factorial(n)


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_MATH = "sqrt cbrt floor ceil exp log log2 log10 sin cos tan asin acos atan degrees radians hypot"
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "min": min,
    "max": max,
    "round": _round,
    "pow": _power,
    "factorial": _factorial,
    **{name: getattr(math, name) for name in _MATH.split()},
}


@tool(name="calculate", effects=[])
def calculator(expression: Annotated[str, Field(examples=["12 * 4"])]) -> str:
    """Calculate an arithmetic expression.

    Args:
        expression: numbers, + - * / // % **, parentheses, sqrt, round, min, max, abs, pi
    """
    text = expression.translate(_SIGNS).strip().rstrip("=").strip()
    if len(text) > _MAX_EXPRESSION:
        raise ValueError(f"the expression is too long: {_MAX_EXPRESSION} characters at most")
    try:
        value = _value(ast.parse(text, mode="eval").body)
        if isinstance(value, float) and not math.isfinite(value):
            raise OverflowError
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("the result is too large") from None
    except (SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"{expression!r:.80} is not an arithmetic expression; write one such as 2 * (3 + 4)") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            result = value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            result = _OPERATORS[type(op)](_value(operand))
        case ast.BinOp(op=ast.BitXor()):
            raise ValueError("write ** for powers, not ^")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            result = _OPERATORS[type(op)](_value(left), _value(right))
        case ast.Name(id=name) if name in _NAMES:
            result = _NAMES[name]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            result = _FUNCTIONS[name](*map(_value, args))
        case ast.Call(func=ast.Name(id=name)) | ast.Name(id=name):
            known = [*_NAMES, *_FUNCTIONS]
            raise ValueError(f"unknown name {name!r:.40}.{did_you_mean(name, known)} Use: {', '.join(known)}")
        case ast.Tuple():
            raise ValueError("write numbers without commas")
        case _:
            raise SyntaxError
    if isinstance(result, int) and result.bit_length() > _MAX_BITS:
        raise OverflowError
    return result


@tool(name="now", effects=[])
def clock(timezone: str = "local", ctx: Any = None) -> str:  # noqa: D417 - a model does not see the context
    """Tell what time it is, and the date.

    Args:
        timezone: local, UTC, or a name such as Europe/Rome
    """
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(time.time() if ctx is None else ctx.clock.time(), UTC)
    wanted = timezone.strip().lower()
    if wanted in ("", "local"):
        at, name = at.astimezone(), ""
    elif wanted in ("utc", "gmt", "z"):
        name = "UTC"
    else:
        zone = _zone(timezone.strip())
        at, name = at.astimezone(zone), zone.key
    offset = at.strftime("%z")
    return f"{at:%A, %Y-%m-%d %H:%M:%S}, {name or at.tzname()} (UTC{offset[:3]}:{offset[3:5]})"


def _zone(name: str) -> Any:
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, not a name, or a folder of names
        known = sorted(available_timezones())
    plain = name.lower().replace(" ", "_")
    for zone in known:
        if plain in (zone.lower(), zone.lower().rpartition("/")[2]):
            return ZoneInfo(zone)
    raise ValueError(f"unknown time zone {name!r:.60}.{did_you_mean(name, known)} Use a name such as Europe/Rome")
