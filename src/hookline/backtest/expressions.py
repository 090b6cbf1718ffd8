"""The expressions of ``--fail-if``: comparisons of the numbers of a report."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection
from typing import Any

from .._base.text import did_you_mean
from .errors import BacktestError

_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class Condition:
    """A parsed expression such as ``newly_blocked.exact > 0 or precision < 0.9``.

    Python's own grammar is parsed, but only comparisons, names and numbers are accepted, and nothing is executed.

    Args:
        text: the expression.
        names: the names of numbers.
        counts: the names of counts, which have parts.
        parts: the names of these parts.
        example: an expression for error messages.

    Raises:
        BacktestError: the expression is invalid.
    """

    def __init__(
        self,
        text: str,
        names: Collection[str],
        counts: Collection[str],
        parts: Collection[str],
        example: str = "newly_blocked > 0",
    ) -> None:
        self.text, self._example = text, example
        self._names, self._counts, self._parts = (*counts, *names), counts, parts
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._wrong("it is not an expression") from None
        self._check(self._tree)

    def reason(self, value: Callable[[str, str], float | None]) -> str | None:
        """Return the compared names with their values if the expression is true, else ``None``.

        ``value(name, part)`` returns a number, or ``None`` if it is unknown; ``part`` is empty for the whole.
        """
        found: list[str] = []
        return f"{self.text}: {', '.join(dict.fromkeys(found))}" if self._holds(self._tree, value, found) else None

    def _wrong(self, problem: str) -> BacktestError:
        end = "" if problem.endswith("?") else "."
        return BacktestError(f'--fail-if {self.text!r}: {problem}{end} Write for example "{self._example}"')

    def _check(self, node: ast.expr) -> None:
        match node:
            case ast.BoolOp():
                for value in node.values:
                    self._check(value)
            case ast.UnaryOp(op=ast.Not()):
                self._check(node.operand)
            case ast.Compare(ops=[op], comparators=[right]) if type(op) in _COMPARE:
                self._check_value(node.left)
                self._check_value(right)
            case _:
                raise self._wrong("compare a name with a number")

    def _check_value(self, node: ast.expr) -> None:
        match node:
            case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
                return
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
                return
            case ast.Name():
                self._check_name(node.id, node.id, self._names)
                return
            case ast.Attribute(value=ast.Name(id=name)):
                self._check_name(name, name, self._names)
                if name not in self._counts:
                    raise self._wrong(f"{name!r} has no parts; {', '.join(self._parts)} are parts of differences")
                self._check_name(f"{name}.{node.attr}", node.attr, self._parts)
                return
        raise self._wrong(f"{ast.unparse(node)!r} is neither a name nor a number")

    def _check_name(self, shown: str, name: str, known: Collection[str]) -> None:
        if name not in known:
            raise self._wrong(f"there is no {shown!r}.{did_you_mean(name, known)}".removesuffix("."))

    def _holds(self, node: ast.expr, value: Callable[[str, str], float | None], found: list[str]) -> bool:
        match node:
            case ast.BoolOp():  # all of them are evaluated, so that the reason contains every value
                parts = [self._holds(part, value, found) for part in node.values]
                return all(parts) if isinstance(node.op, ast.And) else any(parts)
            case ast.UnaryOp():
                return not self._holds(node.operand, value, found)
        assert isinstance(node, ast.Compare)
        left, right = _number(node.left, value, found), _number(node.comparators[0], value, found)
        # A share that cannot be computed must not pass a check, so every comparison with it holds.
        return left is None or right is None or bool(_COMPARE[type(node.ops[0])](left, right))


def _number(node: ast.expr, value: Callable[[str, str], float | None], found: list[str]) -> float | None:
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return ast.literal_eval(node)  # type: ignore[no-any-return]
    shown = ast.unparse(node)
    name, _, part = shown.partition(".")
    number = value(name, part)
    found.append(f"{shown} is {'unknown: there are no labels for it' if number is None else f'{number:g}'}")
    return number
