"""The plugin for opencode does with a call what the answer says, as opencode 1.18.33 calls it."""

import json
import shutil
import subprocess

import pytest

from hookline.adapters.coding_agents.codecs import codec_of

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")

DRIVER = """
const [hook, input, output, answer] = JSON.parse(process.argv[2])
globalThis.Bun = {spawn: () => ({stdout: answer, stderr: "", exited: Promise.resolve(0)})}
const {Hookline} = await import("./hookline.mjs")
const args = output?.args
let error = null
try { await (await Hookline({directory: "/shop"}))[hook](input, output) } catch (found) { error = found.message }
console.log(JSON.stringify({error, output, args}))
"""
CALL = {"tool": "bash", "sessionID": "s", "callID": "c"}


@pytest.fixture
def plugin(tmp_path):
    """Call a hook of the plugin with what opencode gives it, and an answer of the command."""
    (tmp_path / "hookline.mjs").write_text(codec_of("opencode").settings("hookline agent-hook", ["before_tool"], 30))
    (tmp_path / "driver.mjs").write_text(DRIVER)

    def call(hook, output, answer, **given):
        scene = json.dumps([hook, CALL | given, output, answer if isinstance(answer, str) else json.dumps(answer)])
        command = ["node", "driver.mjs", scene]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return call


def test_changed_arguments_are_changed_in_the_object_that_opencode_uses(plugin):
    given = {"command": "touch original", "timeout": 5}
    done = plugin("tool.execute.before", {"args": given}, {"args": {"command": "touch copy"}})
    assert done["error"] is None
    assert done["args"] == {"command": "touch copy"}


@pytest.mark.parametrize("answer", ["", "nonsense", "null", {"deny": "No."}])
def test_anything_but_a_clean_answer_denies(plugin, answer):
    assert plugin("tool.execute.before", {"args": {"command": "ls"}}, answer)["error"]


def test_a_result_of_an_mcp_server_is_replaced_with_all_its_parts(plugin):
    image = {"type": "image", "data": "secret"}
    output = {"content": [{"type": "text", "text": "secret"}, image], "structuredContent": {"word": "secret"}}
    done = plugin("tool.execute.after", output, {"output": "[hidden]"}, args={})
    assert done["output"]["content"] == [{"type": "text", "text": "[hidden]"}]
    assert "secret" not in json.dumps(done["output"])


def test_a_result_is_replaced_without_its_attachments(plugin):
    output = {"title": "cat", "output": "secret", "metadata": {"preview": "secret"}, "attachments": [{"url": "x"}]}
    done = plugin("tool.execute.after", output, {"output": "[hidden]"}, args={})
    assert done["output"]["output"] == "[hidden]"
    assert "attachments" not in done["output"]
    assert "secret" not in json.dumps(done["output"])


@pytest.mark.parametrize(
    "output",
    [
        {"title": "cat", "output": "text", "metadata": {"exit": 0}},
        {"content": [{"type": "text", "text": "text"}], "isError": False},
    ],
)
def test_a_result_that_no_hook_changes_stays_as_it_is(plugin, output):
    assert plugin("tool.execute.after", output, {}, args={})["output"] == output


def test_a_result_without_an_answer_is_withheld(plugin):
    done = plugin("tool.execute.after", {"title": "cat", "output": "secret", "metadata": {}}, "nonsense", args={})
    assert "withheld" in done["output"]["output"]
    assert "secret" not in json.dumps(done["output"])
