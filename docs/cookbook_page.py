"""The cookbook as a page, made of the programs in examples/cookbook: `python docs/cookbook_page.py`."""

import re
from pathlib import Path

from hookline.hooks._catalog import BUILTINS
from hookline.points import POINTS

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "examples" / "cookbook"

HEAD = """# Cookbook

Short programs, each complete, that solve one problem with a hook or two written by hand. They run as they are, on a
scripted model, with no key and no network:

```console
$ cd examples/cookbook
$ python keep_to_office_hours.py
It is Saturday, 03:00. Deploy from Monday to Friday, 9 to 17.
shop is deployed
```

Each is also a file of hooks that the command line takes, around a real model and with your tools, or those in the file:

```console
$ hookline run "Train a model." --hooks show_progress.py --tools show_progress.py
```

Where [a built-in hook](../reference/hooks/index.md) does more than the few lines here, the text names it. Where hooks
fire, and what they may say there, is in [points](../reference/points.md). This page is generated from the programs in
[examples/cookbook](../../examples/cookbook), and the tests compare what each prints with what is shown.

| you want to | at | and say |
|---|---|---|
"""

GROUPS = {
    "Keep it from doing harm": (
        "keep_to_office_hours", "ask_a_second_person", "ask_a_policy_server", "judge_calls_with_a_model",
        "distrust_after_reading_the_web", "rehearse_without_doing", "stop_at_a_kill_switch", "end_when_a_canary_leaks",
    ),
    "Keep it within limits": ("limit_calls_per_tool", "limit_spending_per_user", "cache_tool_results"),
    "Change what passes": (
        "hide_secrets_in_results", "redact_while_streaming", "mend_arguments", "tell_who_the_user_is",
        "try_two_prompts", "translate_the_reply",
    ),
    "Make it do the job": ("insist_on_sources", "run_tests_before_stopping", "survive_an_outage"),
    "See what it does": ("write_json_lines", "show_progress", "tag_log_lines"),
    "Go beyond one agent": (
        "brief_subagents", "answer_commands_without_a_model", "declare_your_own_point", "bundle_a_plugin",
    ),
}  # fmt: skip
"""Every program, by what it is good for; one that is missing here is an error."""


def cookbook_page() -> str:
    """All programs as one page: a table of what they do, then each with its text, code and output."""
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
