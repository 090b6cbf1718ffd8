"""Local token counting."""

import sys

import pytest

from hookline import Message
from hookline.payloads import ToolCall
from hookline.providers import tokens
from hookline.providers.anthropic import AnthropicModel
from hookline.providers.openai import OpenAIModel

TEXT = "Der schnelle braune Fuchs springt über den faulen Hund. " * 20


def openai(name="gpt-5"):
    return OpenAIModel(name, api_key="k")


def test_the_openai_tokenizer_counts_exactly():
    assert openai().count_tokens("hello world") == 2
    assert openai().count_tokens("") == 0


@pytest.mark.parametrize("name", ["gpt-4", "gpt-4-turbo", "gpt-3.5-turbo"])
def test_old_models_have_the_old_tokenizer(name):
    assert openai(name).count_tokens(TEXT) > openai("gpt-4o").count_tokens(TEXT)


@pytest.mark.parametrize("name", ["gpt-4o-mini", "gpt-4.1", "o3", "llama3"])
def test_all_others_have_the_new_one(name):
    assert openai(name).count_tokens(TEXT) == openai("gpt-4o").count_tokens(TEXT)


def test_the_tokenizer_is_loaded_once():
    openai().count_tokens("a")
    before = tokens._encoding.cache_info().misses
    openai().count_tokens("b")
    assert tokens._encoding.cache_info().misses == before


def test_without_the_tokenizer_the_count_is_an_estimate(monkeypatch):
    exact = openai().count_tokens(TEXT)
    monkeypatch.setitem(sys.modules, "bpe_openai", None)
    tokens._encoding.cache_clear()
    try:
        assert 0.5 * exact < openai().count_tokens(TEXT) < 2 * exact
    finally:
        tokens._encoding.cache_clear()


@pytest.mark.parametrize("model", [openai(), AnthropicModel("claude-x", api_key="k")])
def test_messages_count_with_their_calls(model):
    plain = [Message("user", "Hi."), Message("assistant", "Hello.")]
    calling = [*plain, Message("assistant", "", (ToolCall("c", "read", {"path": "a/long/path/to/a/file"}),))]
    assert model.count_tokens(plain) > model.count_tokens("Hi.Hello.")
    assert model.count_tokens(calling) > model.count_tokens(plain) + 8


def test_the_anthropic_estimate_is_close():
    model = AnthropicModel("claude-x", api_key="k")
    assert model.count_tokens("") == 0
    assert len(TEXT) / 5 < model.count_tokens(TEXT) < len(TEXT) / 2


def test_text_with_lone_surrogates_is_counted():
    for model in (openai(), AnthropicModel("claude-x", api_key="k")):
        assert model.count_tokens("a\ud800b") > 0
