"""Cost of calls, from the price list of ``genai-prices``."""

import socket
import sys

import pytest

from hookline import ModelRequest
from hookline.models import ModelResponse
from hookline.payloads import Usage
from hookline.providers.anthropic import AnthropicModel
from hookline.providers.apis.common import ToolNames
from hookline.providers.openai import OpenAIModel
from hookline.providers.prices import cost_of, load_prices

OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com"
LOTS = Usage(1_000_000, 1_000_000)


def test_cached_tokens_cost_less():
    fresh = cost_of(Usage(1000, 0), "gpt-4o", url=OPENAI)
    cached = cost_of(Usage(1000, 0, 1000), "gpt-4o", url=OPENAI)
    assert 0 < cached < fresh


def test_cache_writes_cost_more():
    plain = cost_of(Usage(1000, 0), "claude-sonnet-4-5", url=ANTHROPIC)
    short = cost_of(Usage(1000, 0), "claude-sonnet-4-5", url=ANTHROPIC, cache_writes={"cache_write_tokens": 1000})
    hours = {"cache_write_tokens": 1000, "cache_write_1h_tokens": 1000}
    assert 0 < plain < short < cost_of(Usage(1000, 0), "claude-sonnet-4-5", url=ANTHROPIC, cache_writes=hours)


def test_the_first_known_name_is_used():
    assert cost_of(LOTS, "a-private-alias", "gpt-4o", url=OPENAI) == cost_of(LOTS, "gpt-4o", url=OPENAI)


@pytest.mark.parametrize(
    ("model", "url"),
    [("no-such-model", OPENAI), ("gpt-4o", "http://127.0.0.1:8080/v1"), ("claude-sonnet-4-5", "https://example.org")],
)
def test_an_unknown_model_has_no_cost(model, url):
    assert cost_of(LOTS, model, url=url) is None


@pytest.mark.parametrize("usage", [Usage(10, 0, 500), Usage(-7, 0)])
def test_an_invalid_count_has_no_cost(usage):
    assert cost_of(usage, "gpt-4o", url=OPENAI) is None


def test_without_the_package_there_is_no_cost(monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    load_prices.cache_clear()
    try:
        assert cost_of(LOTS, "gpt-4o", url=OPENAI) is None
    finally:
        load_prices.cache_clear()


def test_no_network_is_used(monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert cost_of(LOTS, "gpt-4o", url=OPENAI) is not None


def reply_of(model, data) -> ModelResponse:
    return model._response(data, {}, ModelRequest(), model.name, ToolNames(()))


def test_a_chat_reply_has_its_cost():
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 600}}
    choice = {"message": {"content": "Hi."}, "finish_reason": "stop"}
    data = {"model": "gpt-4o-2024-08-06", "choices": [choice], "usage": usage}
    got = reply_of(OpenAIModel("gpt-4o", api_key="k"), data)
    assert got.cost == cost_of(Usage(1000, 10, 600), "gpt-4o", url=OPENAI) > 0


def test_the_cost_of_a_message_includes_the_cache():
    cache = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 200}
    usage = {
        "input_tokens": 100,
        "output_tokens": 10,
        "cache_read_input_tokens": 600,
        "cache_creation_input_tokens": 200,
        "cache_creation": cache,
    }
    data = {"model": "claude-sonnet-4-5", "content": [], "stop_reason": "end_turn", "usage": usage}
    got = reply_of(AnthropicModel("claude-sonnet-4-5", api_key="k"), data)
    assert got.usage == Usage(900, 10, 600)
    # per million tokens: 3 $ input, 0.3 cache reads, 6 cache writes for an hour, 15 output
    assert got.cost == pytest.approx((100 * 3 + 600 * 0.3 + 200 * 6 + 10 * 15) / 1e6)
