"""The expressions of ``--fail-if``: comparisons of the numbers of a report."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any, get_args

from .._base.text import did_you_mean
from .errors import BacktestError
from .report import KINDS, Count, Problem

if TYPE_CHECKING:
    from .report import Report

_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_NUMBERS = ("runs", "different_runs", "moments", "judged", "skipped", "guessed", "exact_share", "precision", "recall")
_COUNTS = (*(kind for kind in KINDS if kind != "raised"), "differences")
_PARTS = ("exact", "conditional", "guess")
_PROBLEMS: tuple[Problem, ...] = get_args(Problem)
NAMES = (*_COUNTS, *_NUMBERS, *_PROBLEMS)
"""Everything that an expression can name."""


class Condition:
    """A parsed expression such as ``newly_blocked.exact > 0 or precision < 0.9``.

    Python's own grammar is parsed, but only comparisons, names and numbers are accepted, and nothing is executed.

    Raises:
        BacktestError: the expression is invalid.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self._wrong("it is not an expression") from None
        self._check(self._tree)

    def reason(self, report: Report) -> str | None:
        """Return the comparisons with their values if the expression is true of this report, else ``None``."""
        found: list[str] = []
        return f"{self.text}: {', '.join(dict.fromkeys(found))}" if self._holds(self._tree, report, found) else None

    def _wrong(self, problem: str) -> BacktestError:
        end = "" if problem.endswith("?") else "."
        return BacktestError(f'--fail-if {self.text!r}: {problem}{end} Write for example "newly_blocked > 0"')

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
                if node.id not in NAMES:
                    raise self._wrong(f"there is no {node.id!r}.{did_you_mean(node.id, NAMES)}".removesuffix("."))
                return
            case ast.Attribute(value=ast.Name(id=name)):
                if name not in _COUNTS:
                    raise self._wrong(f"{name!r} has no parts; {', '.join(_PARTS)} are parts of differences")
                if node.attr not in _PARTS:
                    raise self._wrong(
                        f"there is no {name}.{node.attr}.{did_you_mean(node.attr, _PARTS)}".removesuffix(".")
                    )
                return
        raise self._wrong(f"{ast.unparse(node)!r} is neither a name nor a number")

    def _holds(self, node: ast.expr, report: Report, found: list[str]) -> bool:
        match node:
            case ast.BoolOp():  # all of them are evaluated, so that the reason contains every value
                parts = [self._holds(value, report, found) for value in node.values]
                return all(parts) if isinstance(node.op, ast.And) else any(parts)
            case ast.UnaryOp():
                return not self._holds(node.operand, report, found)
        assert isinstance(node, ast.Compare)
        left, right = self._value(node.left, report, found), self._value(node.comparators[0], report, found)
        # A share that cannot be computed must not pass a check, so every comparison with it holds.
        return left is None or right is None or bool(_COMPARE[type(node.ops[0])](left, right))

    def _value(self, node: ast.expr, report: Report, found: list[str]) -> float | None:
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return ast.literal_eval(node)  # type: ignore[no-any-return]
        name = node.id if isinstance(node, ast.Name) else node.value.id  # type: ignore[attr-defined]
        value = _number(report, name)
        if isinstance(node, ast.Attribute):
            value = getattr(value, node.attr)
        elif isinstance(value, Count):
            value = value.total
        shown = "unknown: there are no labels for it" if value is None else f"{value:g}"
        found.append(f"{ast.unparse(node)} is {shown}")
        return value  # type: ignore[no-any-return]


def _number(report: Report, name: str) -> Any:
    if name in _PROBLEMS:
        return report.troubled(name)  # type: ignore[arg-type]
    if name in KINDS:
        return report.total(name)  # type: ignore[arg-type]
    if name in ("precision", "recall"):
        return getattr(report.labels, name)
    if name == "guessed":
        return sum(each.count for each in report.guesses)
    return report.skipped_lines if name == "skipped" else getattr(report, name)
