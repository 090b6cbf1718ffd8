"""Every block of every page is run or checked: here are those that are no commands and no program."""

import configparser
import itertools
import json
import logging
import re
import sqlite3
import subprocess
import tomllib
from contextlib import closing
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, hook, reply, tool
from hookline._net.signatures import verify
from hookline.adapters.claude_code import ClaudeHooks
from hookline.channels.approvals import PendingApproval, render_request
from hookline.channels.options import GatewayOptions
from hookline.channels.webhook.channel import _parse_query, _reply
from hookline.config.loading import load_hooks
from hookline.config.settings import DeclaredHook
from hookline.config.sources import read_file
from hookline.hooks import ObservabilityHook, load_rules
from hookline.payloads import Question
from hookline.plugins.manifest import Manifest, read_manifest
from hookline.providers.script_file import script_model
from hookline.server.a2a.messages import DecisionData
from hookline.server.logs import JsonFormatter
from hookline.server.options import ServerOptions
from hookline.server.views import RunRequest
from hookline.stores.approvals import ApprovalRow
from hookline.stores.audit.keys import make_keys
from hookline.stores.skills import parse_skill
from hookline.testing import fire_hook

from .blocks import GENERATED, KINDS, PAGES, ROOT, blocks_in, of_kind
from .console import commands_in, hookline_calls, parse
from .masks import missing

# None is forgotten.


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_has_a_kind_that_is_run_or_checked(page):
    unknown = [str(block) for block in PAGES[page] if block.kind not in KINDS and not block.kind.startswith("{")]
    assert unknown == []


@pytest.mark.parametrize("page", PAGES)
def test_code_is_in_fences_and_not_merely_indented(page):
    assert re.findall(r"^[^ \n-].*\n\n {4,}\S.*$", prose(page), re.MULTILINE) == []


def test_blocks_are_found_in_lists_and_in_longer_fences():
    text = "1. One:\n\n   ```toml\n   a = 1\n\n   b = 2\n   ```\n\n````text\n```\nin it\n```\n````\n"
    assert [(b.kind, b.text) for b in blocks_in(text)] == [("toml", "a = 1\n\nb = 2\n"), ("text", "```\nin it\n```\n")]
    with pytest.raises(ValueError, match="page:1: a fence that is not closed"):
        blocks_in("```python\n1\n", "page")


# TOML.


@pytest.mark.parametrize("block", of_kind("toml"), ids=str)
def test_settings_are_taken_by_the_code_that_reads_them(block, tmp_path):
    table = tomllib.loads(block.text)
    if block.file == "pyproject.toml":
        assert list(table["project"]["entry-points"]) == ["hookline.plugins"]
    elif block.page == "docs/guides/plugins.md" and table.keys() <= set(Manifest.__struct_fields__):
        (tmp_path / "plugin.toml").write_text(
            'id = "acme"\nversion = "1.0"\napi = "1"\npermissions = ["secrets:ACME_KEY"]\n' + block.text
        )
        read_manifest(tmp_path / "plugin.toml")
    elif isinstance(table.get("rules"), list):
        (tmp_path / "rules.toml").write_text(block.text)
        assert list(load_rules(tmp_path / "rules.toml").failed_examples()) == []
    else:
        (tmp_path / "hookline.toml").write_text(block.text)
        settings, _ = read_file(tmp_path / "hookline.toml")
        ServerOptions.of(settings.get("server", {}))
        make_keys(tmp_path / "audit.key")
        GatewayOptions.of(settings.get("gateway", {}))
        load_hooks(
            [item for item in settings.get("hooks", ()) if ":" not in used(item) and ".py" not in used(item)], tmp_path
        )


def used(item):
    return item.use if isinstance(item, DeclaredHook) else item


# JSON.


def is_a_script(block, folder):
    (folder / "turns.json").write_text(block.text)
    assert script_model(str(folder / "turns.json")).turns


def is_a_decision(block, folder):
    assert msgspec.json.decode(block.text).keys() <= set(DecisionData.__struct_fields__)
    msgspec.json.decode(block.text, type=DecisionData)


def is_a_log_line(block, folder):
    shown = json.loads(block.text)
    record = logging.makeLogRecord({"name": "hookline", "levelname": "WARNING", "msg": "..."})
    assert list(json.loads(JsonFormatter().format(record)))[:4] == list(shown)[:4]
    documented = set(re.findall(r"^\| `(\w+)`", (ROOT / block.page).read_text(), re.MULTILINE))
    assert shown.keys() - documented <= {"message", "logger", "task_id"}


def is_a_reply(block, folder):
    assert json.loads(block.text).keys() == _reply("", "", "", "", "").keys()


def is_settings_of_claude_code(block, folder):
    (folder / "settings.json").write_text(block.text)
    assert ClaudeHooks(folder / "settings.json").handlers


def is_an_app_manifest(block, folder):
    settings = json.loads(block.text)["settings"]
    assert settings["event_subscriptions"]["bot_events"] == ["app_mention", "message.channels", "message.im"]
    assert settings["interactivity"]["is_enabled"]


def is_a_run_request(block, tmp_path):
    request = msgspec.json.decode(block.text, type=RunRequest)
    assert len(request.attachments) == 2


JSON = {
    "docs/guides/a2a.md": is_a_decision,
    "docs/guides/attachments.md": is_a_run_request,
    "docs/guides/channels/webhook.md": is_a_reply,
    "docs/guides/claude-code-hooks.md": is_settings_of_claude_code,
    "docs/guides/evidence.md": is_a_script,
    "docs/guides/models.md": is_a_script,
    "docs/reference/logs.md": is_a_log_line,
    "docs/guides/plugins.md": is_a_script,
    "docs/guides/channels/slack.md": is_an_app_manifest,
}


@pytest.mark.parametrize("block", of_kind("json"), ids=str)
def test_json_blocks_are_valid_for_their_context(block, tmp_path):
    JSON[block.page](block, tmp_path)


# SQL.


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    @tool
    def look(at: str) -> str:
        """Look."""
        raise ValueError("it is dark")

    @guard(BEFORE_TOOL)
    def no_peeking(ctx, request):
        return HookResult.block("No.", reason="private") if request.arguments["at"] == "diary" else None

    path = tmp_path_factory.mktemp("runs") / "runs.db"
    turns = [[call("look", at="diary"), call("look", at="sky")], reply("Dark.")]
    observability = ObservabilityHook(path)
    Agent("eyes", llm=ScriptedModel(turns), tools=[look], hooks=[no_peeking, observability]).run("Look.")
    observability.flush()
    observability.store.close()
    return path


@pytest.mark.parametrize("block", of_kind("sql"), ids=str)
def test_sql_finds_something_in_the_file_of_a_run(block, recorded):
    with closing(sqlite3.connect(recorded)) as db, db:
        assert db.execute(block.text).fetchall()
    db.close()


# Output, which is not below the code or the command that writes it, and other text.


def is_a_drawing(text, programs, folder):
    assert not re.search(r"^\w", text, re.MULTILINE)


def is_a_caddyfile(text, programs, folder):
    assert balanced(text)


def is_how_a_call_is_put(text, programs, folder):
    fields = dict.fromkeys(ApprovalRow.__struct_fields__, "") | {
        "agent": "bot",
        "tool": "write_file",
        "arguments": {"path": "notes/todo.txt", "content": "Buy milk."},
        "questions": (Question(hook="PlanModeHook", text="May write_file run?", reason="plan mode"),),
        "expires": 0.0,
    }
    (message,), _ = render_request(PendingApproval("", ApprovalRow(**fields), "A7K2", True))
    assert missing(re.sub(r"Answer by [^`]+:", "Answer by ...:", text), message) == [], message


def is_what_a_run_shows_of_a_subagent(text, programs, folder):
    team = """
from hookline import Agent, ScriptedModel
from hookline.teams import Team
team = Team([Agent("writer", "writes poems", llm=ScriptedModel(["Roses are red."], loop=True))])
tools = [team]
"""
    (folder / "team.py").write_text(team)
    turns = [{"tool": "delegate", "arguments": {"to": "writer", "task": "A poem."}}, "Done."]
    (folder / "turns.json").write_text(json.dumps(turns))
    command = [
        programs / "hookline",
        "run",
        "Go.",
        "--tools",
        "team.py",
        "--model",
        "scripted:turns.json",
        "--runs",
        "none",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert missing(text, done.stderr) == [], done.stderr


def is_what_explain_shows(text, programs, folder):
    program = """
from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, observer, reply, tool
from hookline.records import RecordHook

@tool
def delete(path: str) -> str:
    "Delete a file."
    return f"{path} is gone"

@guard(BEFORE_TOOL, tools="delete", priority=10)
def keep_reports(ctx, request):
    return HookResult.block("Reports are kept.", reason="rule 3")

@guard(BEFORE_TOOL, tools="delete")
def keep_logs(ctx, request):
    pass

@guard(BEFORE_TOOL, tools="send_*")
def no_mail(ctx, request):
    pass

@observer(BEFORE_TOOL)
def count_calls(ctx, request):
    pass

llm = ScriptedModel([call("delete", path="reports/2024.md"), reply("Done.")])
hooks = [keep_reports, keep_logs, no_mail, count_calls, RecordHook("records")]
Agent("cleaner", llm=llm, tools=[delete], hooks=hooks).run("Clean up.")
"""
    (folder / "program.py").write_text(program)
    subprocess.run([programs / "python", folder / "program.py"], cwd=folder, check=True, capture_output=True)
    command = [programs / "hookline", "explain", "last", "--records", "records", "--tool", "delete"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    assert missing(text, done.stdout) == [], done.stdout


def is_a_signature(text, programs, folder):
    body = b'{"id": "msg-1", "chat": "room-7", "text": "What is the weather like?"}'
    verify(["a-secret-of-32-characters-or-more"], text.partition(": ")[2].strip(), body, now=1_800_000_000)


def is_a_request_for_replies(text, programs, folder):
    url = urlsplit(text.split()[1])
    assert url.path == "/webhook/webhook/replies"
    assert _parse_query(dict(parse_qsl(url.query))) == ("room-7", 0, 30.0)


def is_a_record(text, programs, folder):
    import jsonschema

    from hookline.records import Account, read_runs, record_schema

    for line in text.splitlines():
        jsonschema.Draft202012Validator(record_schema()).validate(json.loads(line))
    (folder / "x.moments").write_text(text)
    account = Account()
    (run,) = read_runs([folder], account=account)
    assert not account
    assert run.moments[0].verdict.verb == "block"


def is_the_tested_policy(text, programs, folder):
    """A policy in Rego, which `make test-adapters` evaluates."""
    tested = (ROOT / "tests/adapters/test_agent_control_spec.py").read_text()
    assert text.replace("policy:large_refund", "policy:large") in tested


TEXTS = {
    ("docs/guides/cedar-rego.md", "package refunds"): is_the_tested_policy,
    ("docs/guides/channels.md", " channel"): is_a_drawing,
    ("docs/guides/channels.md", "A7K2"): is_how_a_call_is_put,
    ("docs/guides/channels/webhook.md", "Hookline-Signature"): is_a_signature,
    ("docs/guides/channels/webhook.md", "GET "): is_a_request_for_replies,
    ("docs/guides/explain.md", "Step 1"): is_what_explain_shows,
    ("docs/guides/fleet.md", " "): is_a_drawing,
    ("docs/reference/record-format.md", '["hookline"'): is_a_record,
    ("docs/guides/serve.md", "agents.example.com {"): is_a_caddyfile,
    ("docs/guides/subagents.md", "step 1"): is_what_a_run_shows_of_a_subagent,
}


def named(block):
    return next(
        (what for (page, start), what in TEXTS.items() if block.page == page and block.text.startswith(start)), None
    )


OTHER_TEXT = [
    block for block in of_kind("text") if block.page not in GENERATED and block.output_of not in ("python", "console")
]


@pytest.mark.parametrize("block", OTHER_TEXT, ids=str)
def test_other_text_blocks_are_of_a_known_kind(block, programs, tmp_path):
    named(block)(block.text, programs, tmp_path)


# Python that is no program: signatures, and what a hook may return.


@pytest.mark.parametrize("page", [page for page in GENERATED if any(block.kind == "py" for block in PAGES[page])])
def test_signatures_are_python(page):
    for block in PAGES[page]:
        if block.kind == "py":
            words = re.fullmatch(r"(?:(?:async )?def |class |exception )?(\w+)(\(.*)?", block.text.strip(), re.DOTALL)
            assert words, f"{block}: {block.text}"
            compile(f"def {words[1]}{words[2] or '()'}: ...", str(block), "exec")


VERBS = re.split(r"^## (?=\w+$)", (ROOT / "docs/reference/verbs.md").read_text(), flags=re.MULTILINE)[1:]
VERBS = [section for section in VERBS if "```py" in section]


@pytest.mark.parametrize("section", VERBS, ids=lambda section: section.partition("\n")[0])
def test_the_example_of_a_verb_may_be_returned(section):
    verb = section.partition("\n")[0]
    signature, example = (block.text for block in blocks_in(section))
    compile(f"def {signature.strip().removeprefix('HookResult.')}: ...", verb, "exec")
    space = {}
    exec(f"from hookline import HookResult\ndef example(ctx, request):\n    {example}", space)
    points = re.findall(r"\(points\.md#(\w+)\)", section) or ["before_tool"]
    point = next((each for each in ("before_tool", "before_ticket_complete") if each in points), points[0])
    fields = {"name": "send", "arguments": {"to": "ann"}} if point == "before_tool" else {}
    verdict = fire_hook(hook(point)(space["example"]), point, **fields)
    assert (verdict.error, verdict.failures) == (None, ())
    assert verb in (verdict.action, "ask", "stop") or point == "approval_requested"


# Configuration of other programs.


def balanced(text):
    depth = 0
    for character in re.sub(r"#.*", "", text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0


@pytest.mark.parametrize("block", of_kind("nginx"), ids=str)
def test_a_configuration_of_nginx_is_whole(block):
    assert balanced(block.text)
    lines = [re.sub(r"#.*", "", line).strip() for line in block.text.splitlines()]
    assert [line for line in lines if line and line[-1] not in "{};"] == []


@pytest.mark.parametrize("block", of_kind("ini"), ids=str)
def test_a_unit_of_systemd_starts_a_command_that_there_is(block):
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read_string(block.text)
    assert unit.sections() == ["Unit", "Service", "Install"]
    (args,) = hookline_calls(unit["Service"]["ExecStart"])
    assert parse(args) == "serve"


@pytest.mark.parametrize("block", of_kind("yaml"), ids=str)
def test_the_commands_of_a_workflow_exist_with_their_options(block):
    yaml = pytest.importorskip("yaml")
    if block.page == "docs/guides/decide.md":  # `make test-kits` runs LiteLLM itself
        (guardrail,) = yaml.safe_load(block.text)["guardrails"]
        assert guardrail["litellm_params"]["guardrail"] == "generic_guardrail_api"
        return
    jobs = yaml.safe_load(block.text)["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    calls = [call for command in commands for call in hookline_calls(command) if command.startswith("hookline")]
    assert [parse(call) for call in calls] == ["backtest"]


@pytest.mark.parametrize("block", of_kind("markdown"), ids=str)
def test_a_file_of_a_skill_is_one(block):
    assert block.page == "docs/guides/skills.md"
    skill = parse_skill(block.text, "tidy-notes", "accepted")
    assert skill.name == "tidy-notes"
    assert skill.description


def test_a_diff_is_on_the_page_whose_tests_look_for_its_lines():
    assert {block.page for block in of_kind("diff")} == {"docs/concepts/invariants.md"}


# Commands in the text.


def prose(page):
    return re.sub(r"^( *)(`{3,}).*?^\1\2$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def alternatives(command):
    """`new hook\\|tool NAME` means two commands."""
    words = [re.split(r"\\?\|", word) if " | " not in command else [word] for word in command.split()]
    return [" ".join(chosen) for chosen in itertools.product(*words)]


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])  # which also tells what is gone
def test_every_command_that_a_page_names_exists_with_its_options(page):
    wrong = []
    for said in re.findall(r"`(?:[^`]+ && )?(hookline [^`]+)`", prose(page)):
        for command in alternatives(" ".join(said.split()).replace("hookline COMMAND", "hookline run")):
            for args in hookline_calls(command):
                try:
                    parse(args, named=True)
                except Exception as error:
                    wrong.append((command, str(error)))
    assert wrong == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_every_program_and_target_that_a_page_names_exists(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    said = re.findall(r"`([^`\n]+)`", prose(page))
    files = [found[1] for text in said if (found := re.match(r"python ((?:bench|docs|examples)/\S+\.py)", text))]
    made = [found[1] for text in said if (found := re.fullmatch(r"make ([a-z-]+)", text))]
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert set(made) - set(targets) == set()


@pytest.mark.parametrize("page", [page for page, blocks in PAGES.items() if any(b.kind == "console" for b in blocks)])
def test_every_command_that_a_page_shows_parses_also_those_that_are_not_run(page):
    for block in PAGES[page]:
        for command in commands_in(block) if block.kind in ("console", "sh") else ():
            for args in hookline_calls(command.text):
                parse(args)


def test_a_command_that_does_not_exist_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for wrong in (
        ["audit", "verif"],
        ["keys", "add", "ci", "--scop", "run"],
        ["serve", "--port"],
        ["points", "a", "b"],
    ):
        with pytest.raises(Exception, match=r"No such|requires|unexpected"):
            parse(wrong, named=True)
    with pytest.raises(Exception, match="Missing"):
        parse(["keys", "add"])
    assert parse(["keys", "add"], named=True) == "add"
    parse(["--install-completion"], named=True)
    assert list(tmp_path.iterdir()) == []
