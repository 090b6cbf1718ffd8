"""Questions of MCP servers to people (elicitation): shown with the name of the server, and never answered by itself.

All texts are the server's: invisible characters are written out, and what is too long for people is cut or declined.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .._base.frozen import thaw
from .._base.text import printable, shorten
from .._net.urls import UrlError, parse_url

MAX_QUESTIONS = 20
"""Maximum number of questions that a server may ask in one call of a tool."""

_MAX_MESSAGE, _MAX_FIELDS, _MAX_ABOUT, _MAX_NAME = 2_000, 50, 200, 80
_ATTEMPTS = 3
"""How often people are asked, if their values do not fit the form."""


class ServerQuestion(msgspec.Struct, frozen=True):
    """A question of a server: a form, or a URL that a person is to open.

    ``schema`` is the JSON schema of the form; empty for a URL.
    """

    server: str
    message: str
    schema: Mapping[str, Any] = {}
    url: str = ""

    def text(self, problem: str = "") -> str:
        """Return the question for people: who asks, what, and the fields of the form.

        Raises:
            UrlError: the address is not one that a browser opens as a page of the web.
        """
        message = _visible(self.message.strip(), _MAX_MESSAGE, keep="\n")
        if self.url:
            return (
                f"The MCP server {self.server!r} asks you to open {self.url} in a browser yourself, at the host "
                f"{parse_url(self.url).host}, and says: {message} Approve when you have done that; deny if you will "
                "not."
            )
        fields = "; ".join(_described(name, each, name in self._required) for name, each in self._fields.items())
        again = f" The last answer was not accepted: {problem}." if problem else ""
        form = f" Edit the arguments to fill in its form, and do not enter secrets: {fields}." if fields else ""
        return f"The MCP server {self.server!r} asks: {message}{form}{again}"

    def shown(self) -> dict[str, Any]:
        """Return the arguments that people see: the URL, or the fields with the values that the server proposes."""
        if self.url:
            return {"url": self.url}
        return {name: each.get("default") for name, each in self._fields.items()}

    def problem(self, values: Mapping[str, Any]) -> str:
        """Return why values do not fit the form; empty if they do."""
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
        from referencing import Registry

        checker = Draft202012Validator(thaw(self.schema), registry=Registry())  # references are not downloaded
        error = next(iter(checker.iter_errors(dict(values))), None)
        return "" if error is None else _visible(error.message, _MAX_ABOUT)

    @property
    def _fields(self) -> dict[str, Any]:
        properties = self.schema.get("properties")
        given = properties.items() if isinstance(properties, Mapping) else ()
        return {str(name): each for name, each in list(given)[:_MAX_FIELDS] if isinstance(each, Mapping)}

    @property
    def _required(self) -> frozenset[str]:
        given = self.schema.get("required")
        return frozenset(map(str, given)) if isinstance(given, (list, tuple)) else frozenset()


class ServerAnswer(msgspec.Struct, frozen=True):
    """The answer of a person; ``values`` are those of the form."""

    accepted: bool = False
    values: Mapping[str, Any] | None = None


DECLINED = ServerAnswer()


async def ask_person(ctx: Any, question: ServerQuestion) -> ServerAnswer:
    """Ask the approvers of a run. Where there are none, the question is declined."""
    problem = ""
    for _ in range(_ATTEMPTS):
        answer = await ctx.ask(question.text(problem), question.shown(), asked_by=f"MCP server {question.server}")
        if question.url:
            return ServerAnswer(True) if answer.approve else DECLINED
        if answer.edit is None and not answer.approve:
            return DECLINED
        given = question.shown() if answer.edit is None else thaw(answer.edit)
        values = {name: value for name, value in given.items() if value is not None}
        if not (problem := question.problem(values)):
            return ServerAnswer(True, values)
    return DECLINED


def is_web_address(url: str) -> bool:
    """Whether people may be asked to open an address: one of the web, without a user name before the host."""
    try:
        parse_url(url)
    except UrlError:
        return False
    return True


def _described(name: str, field: Mapping[str, Any], required: bool) -> str:
    about = _visible(field.get("description") or field.get("title") or "", _MAX_ABOUT)
    options = field.get("enum") or [each.get("const") for each in field.get("oneOf") or () if isinstance(each, Mapping)]
    words = ", ".join(_visible(each, _MAX_NAME) for each in list(options)[:_MAX_FIELDS])
    kind = f"one of {words}" if options else _visible(field.get("type", "any"), _MAX_NAME)
    return f"{_visible(name, _MAX_NAME)} ({kind}{', required' if required else ''}){f': {about}' if about else ''}"


def _visible(value: object, limit: int, keep: str = "") -> str:
    return printable(shorten(str(value), limit), keep=keep)
