"""Which exit code a run has earned."""

import pytest

from hookline import AgentResult, RunFailedError
from hookline.cli.errors import exit_code
from hookline.errors import ModelError, NotInstalledError
from hookline.models import AuthError, OverloadedError, UnknownModelError
from hookline.payloads import Step
from hookline.providers.local.weights import WeightsError


def failed(cause, **fields):
    result = AgentResult(status="failed", **fields)
    return result, RunFailedError(result, cause)


def wrapped(cause):
    error = ModelError(str(cause))
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "cause",
    [
        AuthError("x"),
        UnknownModelError("x"),
        wrapped(NotInstalledError("openai", "openai")),
        wrapped(WeightsError("x")),
    ],
)
def test_a_model_that_cannot_be_asked_at_all_is_bad_setup(cause):
    assert exit_code(*failed(cause)) == 2
    assert exit_code(*failed(cause, steps=(Step(0),))) == 1


def test_other_failures_are_failures():
    assert exit_code(*failed(OverloadedError("x"))) == 1
    assert exit_code(*failed(None)) == 1


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("stopped", 3), ("ended", 4), ("cancelled", 130)])
def test_each_status_has_its_code(status, code):
    assert exit_code(AgentResult(status=status)) == code
