"""The endpoints for decisions: ``/decide``, its schema and its client, and LiteLLM's guardrail."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..api import idempotency_key_of
from ..auth import RIGHTS
from ..routing import JSON, Endpoint, body_of, caller_of, correlation_of, json_response, query_of
from ..runs import RunService
from ..views import IdempotencyHeader, WaitQuery
from .answers import Allow, Answer, Stop
from .examples import EXAMPLES
from .hosting import LITELLM
from .litellm import GuardrailAnswer, GuardrailRequest, judge
from .questions import QUESTIONS, SHOWN, Asked, Question, asked, shown
from .sessions import Sessions

CLIENT = Path(__file__).with_name("client.ts")

_DECIDE = """Ask the hooks of an agent about one moment of a run that your program executes. The questions of a
`session` form a run, which begins with `on_run_start`, or with the first question, and ends with `on_run_end`. Only the
action `allow` lets the program go on, with the `payload` of the answer. Treat an error, a time-out and an unknown
action like `block`. With an `Idempotency-Key`, a question that is sent again gets the answer of the first, for as long
as this server remembers it."""

_AGAIN = """The answer to a question that was answered with `ask`: again `ask` if people have not decided yet."""

_GUARDRAIL = """[LiteLLM's generic guardrail API](https://docs.litellm.ai/docs/adding_provider/generic_guardrail_api):
the `texts` of a request are judged at `before_llm`, those of a response at `after_llm`, and its `tool_calls` at
`before_tool`."""


class DecideApi:
    """The endpoints for decisions.

    Args:
        service: runs the agents.
    """

    def __init__(self, service: RunService) -> None:
        self._sessions = Sessions(service)
        self.open, self.close = self._sessions.open, self._sessions.close

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        run = ("run",)
        return [
            Endpoint(
                "POST",
                "/decide",
                self._decide,
                run,
                "decide",
                "Ask the hooks about a moment of your own run",
                body=Question,
                response=Answer,
                headers=IdempotencyHeader,
                errors=(404, 409),
                description=_DECIDE,
                decides=True,
            ),
            Endpoint(
                "GET",
                "/decide/schema",
                self._schema,
                RIGHTS,
                "get_decide_schema",
                "Get the JSON schema of questions and answers, with examples",
                response=dict[str, Any],
            ),
            Endpoint(
                "GET",
                "/decide/client.ts",
                self._client,
                RIGHTS,
                "get_decide_client",
                "Get the TypeScript client of this server",
                media="text/plain",
            ),
            Endpoint(
                "GET",
                "/decide/{id}",
                self._again,
                run,
                "get_decision",
                "Wait for the answer to a question",
                query=WaitQuery,
                response=Answer,
                description=_AGAIN,
                decides=True,
            ),
            Endpoint(
                "POST",
                "/beta/litellm_basic_guardrail_api",
                self._guardrail,
                run,
                "litellm_guardrail",
                "Judge a request or a response of LiteLLM",
                body=GuardrailRequest,
                response=GuardrailAnswer,
                errors=(404, 409),
                description=_GUARDRAIL,
                decides=True,
            ),
        ]

    async def _decide(self, request: Request) -> Response:
        question, caller = asked(await body_of(request, cast("type[Any]", Question))), caller_of(request)
        key = idempotency_key_of(request)
        answer = await self._sessions.ask(
            caller, question, correlation_of(request), "decide", key=key, body=await request.body()
        )
        return _json(question, answer)

    async def _again(self, request: Request) -> Response:
        wait = query_of(request, WaitQuery).wait
        return _json(*await self._sessions.again(request.path_params["id"], caller_of(request), wait))

    async def _guardrail(self, request: Request) -> Response:
        given, caller, correlation_id = (
            await body_of(request, GuardrailRequest),
            caller_of(request),
            correlation_of(request),
        )

        def ask(question: Asked) -> Awaitable[Answer]:
            return self._sessions.ask(caller, question, correlation_id, LITELLM)

        return json_response(await judge(given, ask))

    async def _schema(self, request: Request) -> Response:
        return Response(msgspec.json.encode(schema()), media_type=JSON)

    async def _client(self, request: Request) -> Response:
        return Response(CLIENT.read_bytes(), media_type="text/plain")


def _json(question: Asked, answer: Answer) -> Response:
    if isinstance(answer, (Allow, Stop)) and answer.payload is not None:
        answer = msgspec.structs.replace(answer, payload=shown(question.point, answer.payload))
    return json_response(answer)


@cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of questions and answers, with an example of a question for each point."""
    kinds = [*QUESTIONS.values(), *SHOWN.values(), *get_args(Answer)]
    made, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    references = iter(made)
    questions = [next(references) for _ in QUESTIONS]
    shown = {str(point): next(references) for point in SHOWN}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "POST /decide",
        "description": "A question is valid against `#/$defs/Question`, its answer against `#/$defs/Answer`. The "
        "payload of an answer `allow` has the form in `payloads`.",
        "payloads": shown,
        "$ref": "#/$defs/Question",
        "$defs": {
            "Question": {"oneOf": questions, "examples": list(EXAMPLES.values())},
            "Answer": {"oneOf": list(references)},
            **definitions,
        },
    }
