"""The MCP settings of coding agents go through the gateway, and back."""

from __future__ import annotations

import json
import tomllib

import pytest

from hookline.adapters.mcp_gateway.client_settings import AGENTS, SettingsError, unwrap, wrap

GATEWAY = ["/opt/hookline", "mcp-gateway", "--rules", "/home/ann/rules.py"]
IN_FRONT = [*GATEWAY[1:], "--name", "files", "--", "npx", "-y", "server-filesystem", "/srv"]
PLAIN = {"command": "npx", "args": ["-y", "server-filesystem", "/srv"], "env": {"A": "1"}, "timeout": 5}

TEXTS = {
    "claude": json.dumps(
        {"theme": "ü", "mcpServers": {"files": PLAIN}, "projects": {"/a": {"mcpServers": {"files": PLAIN}}}},
        ensure_ascii=False,
    ),
    "copilot": json.dumps({"mcpServers": {"files": {"type": "local", "tools": ["*"], **PLAIN}}}, indent=4) + "\n",
    "cursor": json.dumps({"mcpServers": {"files": PLAIN}}, indent=2) + "\n",
    "gemini": json.dumps({"mcpServers": {"files": {**PLAIN, "trust": True}}}, indent="\t"),
    "opencode": json.dumps(
        {"mcp": {"files": {"type": "local", "command": ["npx", "-y", "server-filesystem", "/srv"], "enabled": True}}},
        indent=2,
    ),
    "qwen": json.dumps({"mcpServers": {"files": PLAIN}}),
    "codex": """# my settings
model = "o"

[mcp_servers.files] # the notes
command = "npx"
args = ["-y", "server-filesystem", "/srv"]
env = { A = "1" }
""",
}


def servers_of(agent, text):
    document = tomllib.loads(text) if AGENTS[agent].is_toml else json.loads(text)
    return document[AGENTS[agent].key]


@pytest.mark.parametrize("agent", AGENTS)
def test_a_server_is_put_behind_the_gateway_and_back(agent):
    wrapped = wrap(agent, TEXTS[agent], GATEWAY)
    entry, before = servers_of(agent, wrapped.text)["files"], servers_of(agent, TEXTS[agent])["files"]
    command = entry["command"] if AGENTS[agent].is_list else [entry["command"], *entry["args"]]
    assert command == [GATEWAY[0], *IN_FRONT]
    assert {k: v for k, v in entry.items() if k not in ("command", "args")} == {
        k: v for k, v in before.items() if k not in ("command", "args")
    }
    back = unwrap(agent, wrapped.text)
    assert servers_of(agent, back.text) == servers_of(agent, TEXTS[agent])
    if not AGENTS[agent].is_toml:
        assert back.text == TEXTS[agent]


@pytest.mark.parametrize("agent", AGENTS)
def test_it_can_be_done_again_with_other_rules(agent):
    once = wrap(agent, TEXTS[agent], GATEWAY)
    again = wrap(agent, once.text, [*GATEWAY[:-1], "/other.py"])
    assert again.text == once.text.replace("/home/ann/rules.py", "/other.py")
    assert wrap(agent, once.text, GATEWAY).changed == ()
    assert unwrap(agent, TEXTS[agent]).changed == ()
    assert unwrap(agent, TEXTS[agent]).text == TEXTS[agent]


def test_projects_in_the_settings_of_claude_are_changed_too():
    document = json.loads(wrap("claude", TEXTS["claude"], GATEWAY).text)
    assert document["projects"]["/a"]["mcpServers"]["files"]["args"] == IN_FRONT
    assert document["theme"] == "ü"


def test_comments_of_toml_stay():
    assert "[mcp_servers.files] # the notes" in wrap("codex", TEXTS["codex"], GATEWAY).text


def test_servers_that_are_no_commands_stay_and_are_named():
    text = json.dumps({"mcpServers": {"web": {"url": "https://x"}, "odd": {"command": 7}, "list": [], "files": PLAIN}})
    wrapped = wrap("cursor", text, GATEWAY)
    assert wrapped.changed == ("files",)
    assert wrapped.skipped == {
        "web": "it is not a command of this machine",
        "odd": "it has no command",
        "list": "it is not a table",
    }


@pytest.mark.parametrize("text", ["", "// a comment\n{}", "[]", '{"mcpServers": {'])
def test_settings_that_cannot_be_read_are_not_changed(text):
    with pytest.raises(SettingsError):
        wrap("claude", text, GATEWAY)


def test_settings_without_servers_stay():
    assert wrap("claude", "{}", GATEWAY).text == "{}"
    assert wrap("codex", 'model = "o"', GATEWAY).text == 'model = "o"'


def test_mistakes_are_named():
    with pytest.raises(SettingsError, match="Did you mean 'claude'"):
        wrap("claud", "{}", GATEWAY)
    with pytest.raises(SettingsError, match="not the command of a gateway"):
        wrap("claude", "{}", ["hookline", "run"])
