"""``hookline rules``: check, test and explain rules that are data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from ..config.errors import ConfigError
from ..config.sources import Configuration, parse_reference
from .errors import COMPLETED, FAILED, set_up_logging
from .explain import write_page
from .help import Command, Group
from .options import with_settings
from .output import print_parts, short_path, write_json
from .text import counted, printable

if TYPE_CHECKING:
    from ..hooks._rules.words import ExplainedRule
    from ..hooks.rules import Rule, RuleFile

EPILOG = """
Examples:
  hookline rules check rules.toml
  hookline rules test rules.toml
  hookline rules explain rules.toml --html rules.html
  hookline rules schema > rules.schema.json

Rules are loaded like other hooks: hooks = ["rules.toml"] in hookline.toml, --hooks rules.toml, hookline agent-hook
rules.toml, or load_rules("rules.toml") in Python.
"""
_CHECK = """
Examples:
  hookline rules check rules.toml
  hookline rules check

Without FILE, the rules in the setting hooks are checked, and the arguments in their conditions against the tools of the
agent. Tools in conditions are otherwise checked if the file declares them: [tools.NAME.arguments].

Exit codes:
  0    the rules are valid
  2    a mistake, with its file, line and column
"""
_TEST = """
Example:
  hookline rules test rules.toml

Examples are the tables [[rules.examples]]: a situation, and what the rule does then.

Exit codes:
  0    the examples are right
  1    an example is wrong
  2    a mistake in a file
"""

Files = Annotated[list[str], typer.Argument(metavar="FILE", help="Files of rules.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group,
        rich_markup_mode=None,
        help="Check, test and explain rules that are data, in files such as rules.toml.",
        epilog=EPILOG,
    )
    group.command("check", cls=Command, epilog=_CHECK)(with_settings()(check))
    few = with_settings("debug")
    group.command("test", cls=Command, epilog=_TEST)(few(test))
    group.command("explain", cls=Command)(few(explain))
    group.command("schema", cls=Command)(few(schema))
    app.add_typer(group, name="rules")


def check(
    config: Configuration,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Files of rules; by default, those in the setting hooks."),
    ] = None,
) -> int:
    """Check rules: names, fields, types and verbs. Also say what has no example, and what is not checked."""
    from ..config.factory import build_tools

    set_up_logging(config.settings.debug)
    found = _load(files or _configured(config))
    if not files:
        tools = [tool.spec for tool in build_tools(config.settings, config.home) if hasattr(tool, "spec")]
        for each in found:
            each.check_tools(tools)
    for each in found:
        shadowed = sum(rule.data.shadow for rule in each.rules)
        facts = [counted(len(each.rules), "rule"), *([f"{shadowed} in shadow mode"] if shadowed else [])]
        notes = list(_notes(each, with_tools=not files))
        print_parts(Text(f"{_name(each.path)}: {', '.join(facts)}, valid", style="bold green"))
        for note in notes:
            print_parts(Padding(Text(printable(note, keep="")), (0, 0, 0, 2)))
    return COMPLETED


def test(config: Configuration, files: Files) -> int:
    """Test rules with their examples."""
    set_up_logging(config.settings.debug)
    wrong = 0
    for each in _load(files):
        failed = list(each.failed_examples())
        wrong += len(failed)
        total = sum(len(rule.data.examples) for rule in each.rules)
        if failed:
            are = "is" if total == 1 else "are"
            said = f"{_name(each.path)}: {len(failed)} of {counted(total, 'example')} {are} wrong"
        else:
            said = f"{_name(each.path)}: {counted(total, 'example')} of {counted(len(each.rules), 'rule')}, all right"
        print_parts(Text(said, style="bold red" if failed else "bold green"))
        for rule, number, done in failed:
            _print_failed(each, rule, number, done)
        if untested := [rule.name for rule in each.rules if not rule.data.examples]:
            print_parts(Padding(Text(printable(f"no example: {', '.join(untested)}", keep="")), (0, 0, 0, 2)))
    return FAILED if wrong else COMPLETED


def explain(
    config: Configuration,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of rules.")],
    html: Annotated[str, typer.Option("--html", metavar="OUT", help="Write one HTML file instead.")] = "",
) -> int:
    """Show each rule in plain English: when it applies, what happens then, why, and its examples."""
    from ..explain.rules_page import rules_page
    from ..hooks._rules.words import explained

    set_up_logging(config.settings.debug)
    (found,) = _load([file])
    failed = {rule.name for rule, _, _ in found.failed_examples()}
    if html:
        write_page(html, rules_page(found.path.name, explained(found.data), failed))
        return COMPLETED
    for rule, words in zip(found.rules, explained(found.data), strict=True):
        _print_rule(rule, words, is_wrong=rule.name in failed)
    return COMPLETED


def schema(config: Configuration) -> int:
    """Print the JSON schema of the format, for editors."""
    from ..hooks._rules.file import schema as rules_schema

    write_json(rules_schema())
    return COMPLETED


def _load(files: Sequence[str]) -> list[RuleFile]:
    from ..hooks.rules import load_rules

    return [load_rules(name) for name in dict.fromkeys(files)]


def _configured(config: Configuration) -> list[str]:
    uses = [item if isinstance(item, str) else item.use for item in config.settings.hooks]
    found = [use for use in uses if parse_reference(use).is_data]
    if not found:
        raise ConfigError('there are no rules to check: name a file, or set hooks = ["rules.toml"] in hookline.toml')
    return found


def _notes(found: RuleFile, *, with_tools: bool) -> Iterator[str]:
    if untested := [rule.name for rule in found.rules if not rule.data.examples]:
        yield f"no example: {', '.join(untested)}"
    if wrong := len(list(found.failed_examples())):
        said = "1 example is" if wrong == 1 else f"{wrong} examples are"
        yield f"{said} wrong: run 'hookline rules test {short_path(str(found.path))}'"
    reads = [rule for rule in found.rules if rule.condition.arguments and rule.data.tools]
    unknown = dict.fromkeys(
        name for rule in reads for name in rule.data.tools if name not in found.data.tools and rule.condition.arguments
    )
    if unknown and not with_tools:
        yield f"arguments not checked, because the tools are not declared: {', '.join(unknown)}"
    labels = {rule.label for rule in found.rules if rule.label}
    written = " ".join(rule.data.when for rule in found.rules)
    if unread := [label for label in sorted(labels) if label not in written]:
        yield f"label that no rule reads: {', '.join(unread)}"


def _print_failed(found: RuleFile, rule: Rule, number: int, done: str) -> None:
    from ..hooks._rules.words import explained, without_code

    words = next(each for each in explained(found.data) if each.name == rule.name)
    _, situation = words.examples[number - 1]
    expected = rule.data.examples[number - 1].then
    place = _place(found.place_of(rule, number))
    lines = [
        Text.assemble(("✗ ", "red"), (printable(rule.name, keep=""), "bold"), f", example {number} ({place})"),
        Text(f"    situation  {printable(without_code(situation), keep='')}"),
        Text(f"    expected   {expected}"),
        Text.assemble("    but        ", (printable(done, keep=""), "red")),
        Text(f"    condition  {printable(' '.join(rule.data.when.split()), keep='')}", style="dim"),
    ]
    print_parts(Text(), *lines)


def _print_rule(rule: Rule, words: ExplainedRule, *, is_wrong: bool) -> None:
    from ..hooks._rules.words import code_parts

    def said(text: str) -> Text:
        return Text.assemble(*((printable(part, keep=""), "bold" if code else "") for part, code in code_parts(text)))

    marks = [("  shadow mode: it only reports", "yellow")] if words.is_shadow else []
    marks += [("  an example is wrong", "red")] if is_wrong else []
    head = Text.assemble((printable(words.name, keep=""), "bold cyan"), (f"  {_place(rule.place)}", "dim"), *marks)
    parts = [said(words.sentence), *([Text(printable(words.said, keep=""))] if words.said else [])]
    parts += [Text(printable(f"Why: {words.reason}", keep=""))] if words.reason else []
    parts += [Text.assemble((f"{done:<9}", "dim"), printable(situation, keep="")) for done, situation in words.examples]
    print_parts(head, *(Padding(part, (0, 0, 0, 2)) for part in parts), Text())


def _place(place: str) -> str:
    path, colon, line = place.rpartition(":")
    return f"{short_path(path)}{colon}{line}" if colon and line.isdecimal() else short_path(place)


def _name(path: Path) -> str:
    return short_path(os.fspath(path))
