"""Generate the cookbook page from the programs in examples/cookbook: `python docs/cookbook_page.py`."""

import re
from pathlib import Path

from hookline.hooks._catalog import BUILTINS
from hookline.points import POINTS

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "examples" / "cookbook"

HEAD = """# Cookbook

Each of these short programs solves one problem with one or two custom hooks. They run as they are, with a scripted
model, without a key or a network:

```console
$ cd examples/cookbook
$ python keep_to_office_hours.py
It is Saturday, 03:00. Deploy from Monday to Friday, 9 to 17.
shop is deployed
```

The command line accepts each file with `--hooks`, with a real model and your tools, or those in the file:

```console
$ hookline run "Train a model." --hooks show_progress.py --tools show_progress.py
```

The text names [the built-in hook](../reference/hooks/index.md) for the problem, if there is one.
[Points](../reference/points.md) lists where hooks fire, and what they can return there. This page is generated
from the programs in [examples/cookbook](../../examples/cookbook), and tests compare their output
with the page.

| task | points | results |
|---|---|---|
"""

GROUPS = {
    "Safety": (
        "keep_to_office_hours",
        "ask_a_second_person",
        "ask_a_policy_server",
        "judge_calls_with_a_model",
        "distrust_after_reading_the_web",
        "dry_run",
        "stop_at_a_kill_switch",
        "end_when_a_canary_leaks",
    ),
    "Limits": ("limit_calls_per_tool", "cache_tool_results"),
    "Rewriting": (
        "hide_secrets_in_results",
        "redact_while_streaming",
        "correct_arguments",
        "tell_who_the_user_is",
        "try_two_prompts",
        "translate_the_reply",
    ),
    "Quality": ("insist_on_sources", "run_tests_before_stopping", "survive_an_outage"),
    "Observing": ("write_json_lines", "show_progress", "tag_log_lines"),
    "Beyond one agent": (
        "brief_subagents",
        "answer_commands_without_a_model",
        "declare_your_own_point",
        "bundle_a_plugin",
    ),
}
"""All programs by topic; it is an error if one is missing."""


def cookbook_page() -> str:
    """Return the page: a table of all programs, then each with its text, code and output."""
    names = [name for group in GROUPS.values() for name in group]
    if sorted(names) != sorted(path.stem for path in PROGRAMS.glob("*.py")):
        raise SystemExit("docs/cookbook_page.py: GROUPS must list every program in examples/cookbook once")
    page = HEAD
    for group, members in GROUPS.items():
        page += f"| **{group}** | | |\n" + "".join(_row(name) for name in members)
    for group, members in GROUPS.items():
        page += f"\n## {group}\n" + "".join(_recipe(name) for name in members)
    return page


def _row(name: str) -> str:
    title, _, code, _ = _parts(name)
    points = [point for point in POINTS if re.search(rf"\b{point.upper()}\b", code)]
    points += re.findall(r'Point\("(\w+)"', code)
    verbs = sorted(set(re.findall(r"HookResult\.(\w+)\(", code)))
    anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
    cells = (f"[{title}](#{anchor})", *(", ".join(f"`{word}`" for word in words) for words in (points, verbs)))
    return "| " + " | ".join(cells) + " |\n"


def _recipe(name: str) -> str:
    title, about, code, output = _parts(name)
    about = re.sub(r"`(\w+)`", _linked, about)
    link = f"[{name}.py](../../examples/cookbook/{name}.py)"
    return f"\n### {title}\n\n{about}\n\n```python\n{code}```\n\n{link} prints:\n\n```text\n{output}```\n"


def _linked(word: re.Match[str]) -> str:
    module = BUILTINS.get(word[1])
    return f"[{word[0]}](../reference/hooks/{module}.md)" if module else word[0]


def _parts(name: str) -> tuple[str, str, str, str]:
    """Title, text, code and output of a program."""
    text = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")
    _, doc, rest = text.split('"""', 2)
    title, about = doc.split("\n\n", 1)
    code, _, output = rest.partition("\n# prints:\n")
    output = "".join(line.removeprefix("#").removeprefix(" ") + "\n" for line in output.splitlines())
    return title.rstrip("."), about.strip(), code.strip() + "\n", output


if __name__ == "__main__":
    (ROOT / "docs" / "guides" / "cookbook.md").write_text(cookbook_page(), encoding="utf-8")
