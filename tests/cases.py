"""Many cases of one promise in one test: each test of its own costs about 5 ms in all processes of pytest together."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

Test = Callable[..., Any]


def each_case(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Like ``pytest.mark.parametrize``, but the cases run one after the other in one test.

    All of them run, and each that fails is shown. They share the fixtures of the test, so this is for cases that leave
    nothing behind::

        @each_case(("text", "number"), [("1", 1), ("2", 2)])
        def test_a_text_becomes_a_number(text, number):
            assert int(text) == number
    """
    single = isinstance(names, str)
    named = (names,) if isinstance(names, str) else names
    table = [dict(zip(named, (case,) if single else case, strict=True)) for case in cases]

    def decorate(test: Test) -> Test:
        async def run_async(**fixtures: Any) -> None:
            failures = Failures()
            for case in table:
                with failures.of(case):
                    await test(**case, **fixtures)
            failures.check(len(table))

        def run(**fixtures: Any) -> None:
            failures = Failures()
            for case in table:
                with failures.of(case):
                    test(**case, **fixtures)
            failures.check(len(table))

        wrapped: Any = wraps(test)(run_async if inspect.iscoroutinefunction(test) else run)
        signature = inspect.signature(test)
        fixtures = [each for each in signature.parameters.values() if each.name not in named]
        wrapped.__signature__ = signature.replace(parameters=fixtures)
        return wrapped  # type: ignore[no-any-return]

    return decorate


class Failures(list[BaseException]):
    """The failures of the cases of a test."""

    @contextmanager
    def of(self, case: dict[str, Any]) -> Iterator[None]:
        """Keep the failure of a case, with the values of the case."""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"The case: {', '.join(f'{name}={value!r:.300}' for name, value in case.items())}")
            self.append(error)

    def check(self, total: int) -> None:
        """Raise all failures as a group."""
        assert total, "no case was tried"
        if self:
            raise BaseExceptionGroup(f"{len(self)} of {total} cases fail", self)
