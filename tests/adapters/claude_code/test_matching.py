"""Matchers and permission rules."""

import pytest

from hookline.adapters.claude_code.matching import Matcher, Rule


@pytest.mark.parametrize(
    ("matcher", "selected", "others"),
    [
        ("", ["Bash", "mcp__a__b", ""], []),
        ("*", ["Bash", "mcp__a__b"], []),
        ("Bash", ["Bash"], ["bash", "BashOutput", "MyBash"]),
        ("Edit|Write", ["Edit", "Write"], ["MultiEdit", "Edit|Write"]),
        ("Edit, Write", ["Edit", "Write"], ["NotebookEdit"]),
        ("mcp__memory", ["mcp__memory"], ["mcp__memory__create"]),
        ("mcp__memory__.*", ["mcp__memory__create"], ["mcp__other__create"]),
        ("my-tool", ["my-tool"], ["my-tools"]),
        ("Notebook.*", ["NotebookEdit", "MyNotebook"], ["notebook"]),
        ("^Notebook", ["NotebookEdit"], ["MyNotebook"]),
        ("(?<kind>Edit|Write)$", ["Edit", "MultiEdit"], ["Read"]),
    ],
)
def test_a_matcher_is_a_list_of_exact_names_or_else_an_unanchored_regular_expression(matcher, selected, others):
    made = Matcher(matcher)
    assert [name for name in selected if not made.matches(name)] == []
    assert [name for name in others if made.matches(name)] == []


def test_an_invalid_regular_expression_is_an_error():
    with pytest.raises(ValueError, match=r"'\(Bash' is not a valid regular expression"):
        Matcher("(Bash")


@pytest.mark.parametrize(
    ("rule", "tool", "arguments", "fits"),
    [
        ("Bash", "Bash", {"command": "ls"}, True),
        ("Bash", "Read", {}, False),
        ("Bash(*)", "Bash", {"command": "ls"}, True),
        ("Bash(git *)", "Bash", {"command": "git push origin"}, True),
        ("Bash(git *)", "Bash", {"command": "git"}, True),
        ("Bash(git *)", "Bash", {"command": "gitk"}, False),
        ("Bash(git *)", "Bash", {"command": "cd src && git push"}, True),
        ("Bash(git *)", "Bash", {"command": "ls; echo git"}, False),
        ("Bash(git *)", "Bash", {"command": "for i in 1 2; do git push; done"}, True),  # not parsed, so called
        ("Bash(npm run test:*)", "Bash", {"command": "npm run test --watch"}, True),
        ("Bash(rm -rf /)", "Bash", {"command": "rm -rf /"}, True),
        ("Edit(*.ts)", "Edit", {"file_path": "/project/src/deep/a.ts"}, True),
        ("Edit(*.ts)", "Edit", {"file_path": "/project/a.js"}, False),
        ("Edit(src/**)", "Edit", {"file_path": "/project/src/deep/a.ts"}, True),
        ("Edit(src/**)", "Edit", {"file_path": "/project/lib/src/a.ts"}, False),
        ("Edit(/docs/*)", "Edit", {"file_path": "/project/docs/a.md"}, True),
        ("Read(//etc/**)", "Read", {"file_path": "/etc/ssl/key"}, True),
        ("Read(//etc/**)", "Read", {"file_path": "/project/etc/key"}, False),
        ("Read(src)", "Read", {"file_path": "src/../../other/src2"}, False),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "https://Example.com/a"}, True),
        ("WebFetch(domain:example.com)", "WebFetch", {"url": "https://example.com.evil.test/"}, False),
        ("mcp__memory__*", "mcp__memory__create", {}, True),
        ("Agent(helper)", "Agent", {"subagent_type": "helper", "prompt": "x"}, True),
    ],
)
def test_a_rule_selects_calls_as_permission_rules_do(rule, tool, arguments, fits):
    assert Rule(rule).matches(tool, arguments, "/project") is fits


@pytest.mark.parametrize("text", ["", "Bash(git *", "two words", 7, None])
def test_a_text_that_is_not_a_rule_is_an_error(text):
    with pytest.raises(ValueError, match="is not a permission rule"):
        Rule(text)


def test_padding_does_not_keep_a_guard_from_being_called():
    padding = "x" * 20_000
    assert Matcher("delete$").matches(f"mcp__{padding}__delete")
    assert Rule("Bash(* --force)").matches("Bash", {"command": f"git push {padding} --force"}, "/")
    assert Rule("Bash(git push *)").matches("Bash", {"command": f"echo {padding}; git push x"}, "/")
    assert Rule("mcp__a__b(*secret)").matches("mcp__a__b", {"text": f"{padding}secret"}, "/")
    assert not Rule("Bash(git push *)").matches("Read", {"file_path": padding}, "/")
