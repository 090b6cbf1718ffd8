"""Models by name."""

import pytest

from hookline import Agent, RegistrationError, get_model


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("opnai:gpt", "Did you mean 'openai'?"),
        ("gpt-4o", "Did you mean 'openai:gpt-4o'?"),
        ("openai/gpt-4o", "Did you mean 'openai:gpt-4o'?"),
        ("claude-sonnet-4-5", "Did you mean 'anthropic:claude-sonnet-4-5'?"),
        ("", "Use one of: local, local:PATH"),
        ("openai:", "openai:NAME"),
        ("anthropic:", "anthropic:NAME"),
        ("scripted:", "scripted:FILE"),
        ("scripted:nowhere.json", "the file 'nowhere.json' does not exist"),
        ("local:nowhere.gguf", "cannot read the model file"),
    ],
)
def test_an_unknown_model_name_is_rejected_with_advice(name, message):
    with pytest.raises(RegistrationError, match=message):
        get_model(name)


def test_an_unknown_option_is_named_with_the_known_ones():
    with pytest.raises(RegistrationError, match="has no option base_url; it has: context"):
        get_model("local", base_url="http://localhost")


def test_an_agent_takes_the_name_of_a_model(tmp_path):
    script = tmp_path / "turns.json"
    script.write_text('["hello"]')
    assert Agent("a", llm=f"scripted:{script}").run("hi").reply == "hello"
