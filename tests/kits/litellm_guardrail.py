"""LiteLLM's own guardrail class against `hookline serve`."""

import asyncio
import os
import uuid
from types import SimpleNamespace
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # the list of prices is not downloaded

from cases import must, report
from litellm.exceptions import GuardrailRaisedException
from litellm.llms.openai.chat.guardrail_translation.handler import OpenAIChatCompletionsHandler
from litellm.proxy.guardrails.guardrail_hooks.generic_guardrail_api import GenericGuardrailAPI
from litellm.types.utils import ChatCompletionMessageToolCall, Choices, Function, Message, ModelResponse

CLOSED = "http://127.0.0.1:9"


def guardrail(url: str = os.environ["KIT_URL"], **options: Any) -> GenericGuardrailAPI:
    return GenericGuardrailAPI(api_base=url, guardrail_name="hookline", event_hook="pre_call", **options)


def log() -> Any:
    return SimpleNamespace(litellm_call_id=str(uuid.uuid4()), litellm_trace_id=str(uuid.uuid4()), model_call_details={})


def sent(*messages: dict[str, Any], by: GenericGuardrailAPI | None = None) -> list[dict[str, Any]]:
    """Return the messages of a request as LiteLLM would send them to the model."""
    data = {"model": "gpt-5-mini", "messages": list(messages), "metadata": {}}
    done = asyncio.run(OpenAIChatCompletionsHandler().process_input_messages(data, by or guardrail(), log()))
    found: list[dict[str, Any]] = done["messages"]
    return found


def replied(text: str | None, *calls: tuple[str, str]) -> Any:
    """Return the reply of a model as LiteLLM would return it to its caller."""
    tools = [
        ChatCompletionMessageToolCall(
            id=f"call_{number}", type="function", function=Function(name=name, arguments=given)
        )
        for number, (name, given) in enumerate(calls)
    ]
    message = Message(content=text, role="assistant", tool_calls=tools or None)
    response = ModelResponse(choices=[Choices(message=message, finish_reason="stop", index=0)], model="gpt-5-mini")
    handler = OpenAIChatCompletionsHandler()
    return asyncio.run(handler.process_output_response(response, guardrail(), log())).choices[0].message


def refused(work: Any) -> str:
    try:
        seen = work()
    except GuardrailRaisedException as error:
        return str(error)
    raise AssertionError(f"nothing was refused: {seen!r}")


def passes() -> None:
    given = [{"role": "system", "content": "Help."}, {"role": "user", "content": "hi"}]
    must(sent(*map(dict, given)) == given, given)
    must(replied("Hello.").content == "Hello.", "")


def redacts() -> None:
    parts = [{"type": "text", "text": "a SECRET-1"}, {"type": "text", "text": "b"}]
    seen = sent({"role": "user", "content": parts}, {"role": "user", "content": "SECRET-1"})
    must(seen[0]["content"] == [{"type": "text", "text": "a [secret]"}, parts[1]], seen)
    must(seen[1]["content"] == "[secret]", seen)
    must(replied("It is SECRET-1.").content == "It is [secret].", "")


def blocks() -> None:
    must(refused(lambda: sent({"role": "user", "content": "forbidden"})).startswith("This is not allowed."), "")
    must(refused(lambda: replied("You idiot.")) == "Be polite.", "")


def judges_calls() -> None:
    must(replied("Done.", ("send_mail", '{"to": "ann@example.com"}')).tool_calls[0].function.name == "send_mail", "")
    why = refused(lambda: replied("Done.", ("send_mail", '{"to": "rival@example.org"}')))
    must(why == "Mail goes to colleagues only.", why)
    why = refused(lambda: replied("Done.", ("convert", '{"feet": 3}')))
    must(why == "A hook changed the arguments of convert, which LiteLLM cannot do.", why)


def fails_closed() -> None:
    for each in (guardrail(CLOSED), guardrail(api_key="hl_wrong", url=f"{os.environ['KIT_URL']}/nowhere")):
        try:
            seen = sent({"role": "user", "content": "hi"}, by=each)
        except Exception as error:  # noqa: BLE001 - LiteLLM raises this class itself
            must("Generic Guardrail API failed" in str(error), error)
        else:
            must(False, seen)


report(
    {
        "sends what the hooks let pass": passes,
        "sends and returns the texts that the hooks redact": redacts,
        "refuses what the hooks block": blocks,
        "judges the tool calls of a reply": judges_calls,
        "refuses without an answer": fails_closed,
    }
)
