"""The helper that runs many cases in one test fails when one of them fails."""

import inspect

import pytest

from tests.cases import each_case


def test_all_cases_run_and_each_failing_one_is_shown_with_its_values():
    tried = []

    @each_case(("number", "word"), [(1, "a"), (2, "b"), (3, "c")])
    def check(number, word):
        tried.append(number)
        assert number == 2, "not two"

    with pytest.raises(ExceptionGroup, match="2 of 3 cases fail") as caught:
        check()
    assert tried == [1, 2, 3]
    assert [error.__notes__ for error in caught.value.exceptions] == [
        ["The case: number=1, word='a'"],
        ["The case: number=3, word='c'"],
    ]


async def test_a_failing_case_of_an_async_test_is_shown_too():
    @each_case("number", [1, 2])
    async def check(number):
        assert number == 1

    with pytest.raises(ExceptionGroup, match="1 of 2 cases fail"):
        await check()


def test_a_case_that_does_not_raise_what_it_should_fails():
    @each_case("text", ["one", "1"])
    def check(text):
        with pytest.raises(ValueError, match="invalid"):
            int(text)

    with pytest.raises(BaseExceptionGroup, match="1 of 2 cases fail"):
        check()


def test_a_test_without_cases_fails():
    with pytest.raises(AssertionError, match="no case"):
        each_case("number", [])(lambda number: None)()


def test_fixtures_are_asked_for_and_the_values_of_cases_are_not():
    def check(number, tmp_path): ...

    assert list(inspect.signature(each_case("number", [1])(check)).parameters) == ["tmp_path"]
