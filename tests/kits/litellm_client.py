"""LiteLLM against `hookline serve`."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # the list of prices is not downloaded

import litellm
from cases import must, report

GIVEN = {
    "model": "openai/hookline",
    "api_base": f"{os.environ['KIT_URL']}/v1",
    "api_key": "none",
    "messages": [{"role": "user", "content": "hi"}],
    "num_retries": 0,
}
SAID = "You said 'hi' with 0 files."


def completes() -> None:
    answer = litellm.completion(**GIVEN)
    must(answer.choices[0].message.content == SAID, answer)


def streams() -> None:
    text = "".join(each.choices[0].delta.content or "" for each in litellm.completion(**GIVEN, stream=True))
    must(text == SAID, text)


def maps_errors() -> None:
    try:
        litellm.completion(**{**GIVEN, "model": "openai/nobody"})
    except litellm.NotFoundError:
        return
    must(False, "no error")


report({"completes a chat": completes, "streams": streams, "raises the class of an error": maps_errors})
