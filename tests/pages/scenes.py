"""Preconditions for the commands of each page: files, the model, and earlier events that the page relies on.

A page that is not here begins in an empty folder, with a model that answers everything with "Done.".
"""

import json
from dataclasses import dataclass, field

DESK = """
from hookline import BEFORE_LLM, HookResult, hook, tool
from hookline.models import ModelResponse
from hookline.payloads import ToolCall

@tool
def deploy(service: str) -> str:
    return f"{service} is out"

@hook(BEFORE_LLM)
def instead_of_a_model(ctx, request):
    last = request.messages[-1]
    if last.role == "user" and "Deploy" in last.content:
        return HookResult.answer(ModelResponse("", tool_calls=[ToolCall("c1", "deploy", {"service": "shop"})]))
    return HookResult.answer(ModelResponse("Hello"))
"""
SERVER = """
personalities = "personalities"
personality = "helper"
tools = ["desk.py"]
hooks = ["desk.py", { use = "PlanModeHook", args = { confirm = ["deploy"] } }]
approval_file = "approvals.db"
audit = "audit.jsonl"
runs = "runs.db"
[server]
port = 8420
"""
SERVED = {"hookline.toml": SERVER, "desk.py": DESK, "personalities/helper.toml": 'instructions = "You help."\n'}
WAITING = """
approval_file = "approvals.db"
tools = ["notes.py"]
hooks = [{ use = "PlanModeHook", args = { confirm = ["read_note"] } }]
"""
NOTES = """
from hookline import tool

@tool(effects=["read"])
def read_note(path: str) -> str:
    return "Hello."
"""
READ = {"tool": "read_note", "arguments": {"path": "notes/a.txt"}}
POST = "curl -s http://127.0.0.1:8420/runs -H 'Content-Type: application/json'"
ASK = f"""{POST} -d '{{"task": "What is new?"}}' | jq -r .id"""
START = f"""{POST} -d '{{"task": "Deploy the shop."}}' | jq -r .id"""
CALL_WAITS = """until CALL=$(hookline approvals --json | jq -er .[0].id); do sleep 0.05; done"""
ANOTHER_WAITS = f"""{{ hookline run "Read it." --wait >>runs.out 2>&1 & }}; {CALL_WAITS}"""


GRANT = "GRANT=$(hookline approvals grants --json | jq -r .[0].id)"
REVOKE = "hookline approvals revoke $GRANT"
NO_NOTES = """
from hookline import BEFORE_TOOL, HookResult, guard

@guard(BEFORE_TOOL, tools="read_*")
def no_notes(ctx, request):
    return HookResult.block("Notes are private.", reason="rule 7")
"""
REJECTED = "The user doesn't want to proceed with this tool use. The tool use was rejected."
_TURNS = (
    {"type": "user", "message": {"content": "Clean up the folder."}},
    {"type": "assistant", "message": {"id": "m1", "model": "m", "content": [{"type": "thinking", "thinking": "hm"}]}},
    {
        "type": "assistant",
        "message": {
            "id": "m1",
            "model": "m",
            "content": [{"type": "tool_use", "id": "c1", "name": "Bash", "input": {"command": "ls"}}],
        },
    },
    {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "c1", "content": "notes.txt"}]}},
    {
        "type": "assistant",
        "message": {
            "id": "m2",
            "model": "m",
            "content": [{"type": "tool_use", "id": "c2", "name": "Bash", "input": {"command": "rm notes.txt"}}],
        },
    },
    {
        "type": "user",
        "toolDenialKind": "user-rejected",
        "message": {
            "content": [{"type": "tool_result", "tool_use_id": "c2", "content": REJECTED, "is_error": True}],
        },
    },
    {"type": "assistant", "message": {"id": "m3", "model": "m", "content": [{"type": "text", "text": "All right."}]}},
)
TRANSCRIPT = "".join(
    json.dumps({"sessionId": "s", "uuid": f"u{n}", "timestamp": f"2026-11-02T10:00:0{n}Z", **turn}) + "\n"
    for n, turn in enumerate(_TURNS)
)
REQUESTS = (
    '{"request": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},'
    ' "response": {"choices": [{"message": {"role": "assistant", "content": "Hello"}}]}}\n'
)
SPANS = (
    '{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "spanId": "s", "startTimeUnixNano": "1",'
    ' "endTimeUnixNano": "2", "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue":'
    ' "invoke_agent"}}]}]}]}]}\n'
)
REASONS = ("damaged", "late", "wrong size")


def month():
    """A month of conversations of a shop, as logs of another system, a late one with a reason that is new."""
    for number in range(120):
        reason = "birthday" if number == 117 else REASONS[number % 3]
        order, amount = f"#{1000 + number * 7919 % 9000}", 5 + number * 37 % 80
        calls = [
            ("get_order", {"order": order}),
            ("refund", {"order": order, "amount": amount, "reason": reason}),
            ("send_mail", {"to": f"{'abcdefgh'[number * 5 % 8]}@example.com", "text": "Your refund is on its way."}),
        ]
        messages = [{"role": "user", "content": f"The parcel of my order {order} was {reason}."}]
        for place, (name, arguments) in enumerate(calls):
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": f"c{place}", "type": "function", "function": function}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"c{place}", "content": "ok"})
        messages.append({"role": "assistant", "content": "You get your money back."})
        yield {"created": 1_793_000_000 + number * 21_600, "messages": messages}


def red_team():
    """Records of attacks on the shop: refunds that nobody asked for."""
    for number in range(8):
        ids = {"run_id": f"attack_{number}", "session_id": f"attack_{number}", "agent": "shop"}
        yield ["run", 0, {"ids": ids, "time": 1_796_000_000.0 + number, "task": "Read my mails."}]
        arguments = {"order": f"#{number}", "amount": 200 + number, "reason": "late"}
        yield ["before_tool", "refund", 0, 0, 0.0, 0.0, {"id": "c0", "name": "refund", "arguments": arguments}]
        yield ["end", 0, {"status": "completed"}]


LEARNED = json.dumps(
    {
        "reusable": True,
        "name": "tidy-notes",
        "description": "Tidy a folder of notes up, the newest first.",
        "when": "The user wants notes in order.",
        "steps": ["List the notes with list_files.", "Read each with read_file."],
    }
)
LIST = {"tool": "list_files", "arguments": {}}
LEARNING = [[LIST, LIST, LIST], "Three notes."]
LEARNED_TURNS = json.dumps([LEARNED])


@dataclass(frozen=True)
class Scene:
    """The stage of a page.

    Args:
        files: what is in the folder.
        turns: what the scripted model says, as in the file of `scripted:FILE`.
        checkout: the page is read in a checkout: the examples are there, and `.venv`.
        before: shell code that comes before the commands that begin so: what the page takes for granted.
        names: what stands in the page as an example, and the shell's word for the real thing.
        typed: what is typed at a terminal into commands that begin so.
        stays: commands that do not end by themselves, and what they write when they are ready.
        exits: exit statuses other than 0.
        env: further environment variables.
    """

    files: dict = field(default_factory=dict)
    turns: object = field(default_factory=lambda: {"turns": ["Done."], "loop": True})
    checkout: bool = False
    before: dict = field(default_factory=dict)
    names: dict = field(default_factory=dict)
    typed: dict = field(default_factory=dict)
    stays: dict = field(default_factory=dict)
    exits: dict = field(default_factory=dict)
    env: dict = field(default_factory=dict)


SERVING = "hookline serve >served 2>&1 & until curl -so /dev/null http://127.0.0.1:8420/readyz; do sleep 0.05; done"

PLUGIN = {"tool": "count_words", "arguments": {"text": "four words in it"}}

TIDY = [
    {"tool": "read_note", "arguments": {"name": "Doctor"}},
    {"tool": "delete_note", "arguments": {"name": "Draft"}},
    {"tool": "delete_note", "arguments": {"name": "Taxes 2025", "force": True}},
    {"tool": "mail_note", "arguments": {"name": "Doctor", "to": "ann@example.com"}},
    "The notes are tidy.",
]
REQUEST = {
    "messages": [
        {"role": "user", "content": "Tidy up."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "delete_note", "arguments": '{"name": "Taxes"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "Deleted."},
        {"role": "assistant", "content": "Done."},
    ]
}

SCENES = {
    "docs/guides/api.md": Scene(
        files={
            **SERVED,
            "hookline.toml": f'record = true\nrecords = "records"\n{SERVER}rules = ["strict.py"]\n',
            "strict.py": NO_NOTES,
        },
        before={
            "URL=": SERVING,
            'curl -H "$AUTH" $URL/runs/$ID': f"ID=$({ASK})",
            "curl -X POST $URL/runs/$ID/messages": f"ID=$({START}); {CALL_WAITS}",
            'curl -H "$AUTH" $URL/approvals': f"ID=$({START}); {CALL_WAITS}",
            'curl -H "$AUTH" -H "Content-Type: application/json" $URL/approvals/$CALL': (
                'DIGEST=$(curl -s -H "$AUTH" $URL/approvals/$CALL | jq -r .digest)'
            ),
            'curl -H "$AUTH" $URL/grants': f"ID=$({START}); {CALL_WAITS}; hookline approvals approve $CALL --always",
            'curl -H "$AUTH" -X DELETE': 'GRANT=$(curl -s -H "$AUTH" $URL/grants | jq -r .grants[0].id)',
            'curl -H "$AUTH" $URL/rules': f'ID=$({ASK}); curl -s "$URL/runs/$ID?wait=30"',
            'curl -H "$AUTH" $URL/replays/$JOB': 'JOB=$(curl -s -H "$AUTH" $URL/replays | jq -r .replays[0].id)',
            'curl -H "$AUTH" $URL/audit/verifications/$JOB': (
                'JOB=$(curl -s -H "$AUTH" -X POST $URL/audit/verifications | jq -r .id)'
            ),
        },
    ),
    "docs/guides/evidence.md": Scene(
        files={"requests.jsonl": f"{json.dumps(REQUEST)}\n"},
        turns=TIDY,
        exits={"hookline backtest new_rules.py records/ --fail-if": 1},
    ),
    "docs/guides/attachments.md": Scene(files={"photo.jpg": "not a picture\n"}),
    "docs/guides/approvals.md": Scene(
        files={"hookline.toml": WAITING, "notes.py": NOTES},
        turns={"turns": [READ, "Done."], "loop": True},
        before={
            "hookline approvals ": ANOTHER_WAITS,
            "hookline approvals deny": ANOTHER_WAITS,
            "hookline approvals edit": ANOTHER_WAITS,
            "hookline approvals --watch": ANOTHER_WAITS,
            "hookline approvals approve 3f2a --session": ANOTHER_WAITS,
            "hookline approvals approve 3f2a --always": ANOTHER_WAITS,
            "hookline approvals approve 3f2a --session --pattern": f"{GRANT}; {REVOKE}; {ANOTHER_WAITS}",
            "hookline approvals revoke": GRANT,
        },
        names={"3f2a": "$CALL", "81c0": "$GRANT"},
        stays={"hookline approvals --watch": "read_note"},
    ),
    "docs/guides/channels/webhook.md": Scene(
        env={"HOOKLINE_GATEWAY": '{"port": 8080}'}, before={"sign()": "URL=http://127.0.0.1:8080/webhook/webhook"}
    ),
    "docs/guides/command-line.md": Scene(
        files={
            "rules.py": "from hookline import BEFORE_TOOL, guard\n@guard(BEFORE_TOOL)\ndef quiet(ctx, request): ...\n",
            "notes.txt": "teh end\n",
        },
        before={"git diff": "git init -q; git add .; git commit -qm one; echo two >> notes.txt"},
    ),
    "docs/guides/first-hook.md": Scene(
        turns={
            "turns": [{"tool": "calculate", "arguments": {"expression": "17 * 23"}}, "391.0000000000000001"],
            "loop": True,
        },
        exits={'hookline run "What is 17 * 23?" --hooks take_it.py': 4},
        files={
            "take_it.py": "from hookline import AFTER_TOOL, HookResult, hook\n\n"
            '@hook(AFTER_TOOL, tools="calculate")\ndef take_it(ctx, done):\n'
            '    if done.error is None:\n        return HookResult.end(done.text, reason="the calculator is right")\n',
        },
    ),
    "docs/guides/keys.md": Scene(files=SERVED, before={"KEY=": SERVING}),
    "docs/guides/office.md": Scene(checkout=True),
    "docs/guides/openai.md": Scene(
        files=SERVED,
        before={"from openai": SERVING},
    ),
    "docs/guides/personalities.md": Scene(typed={"hookline chat": "/quit\n"}),
    "docs/guides/plugins.md": Scene(turns=[PLUGIN, "Four."], typed={"hookline plugins enable word-watch ": "y\n"}),
    "docs/guides/serve.md": Scene(
        checkout=True,
        turns={
            "turns": [
                {"tool": "status", "arguments": {"service": "shop"}},
                *[{"tool": "deploy", "arguments": {"service": "shop"}}] * 9,
            ]
        },
        stays={"curl -sN": "approval_asked"},
        before={
            "hookline approvals": START,
            "hookline approvals approve": CALL_WAITS,
            "hookline approvals deny": f"{START}; {CALL_WAITS}",
        },
        names={"9af078df": "$CALL"},
    ),
    "docs/guides/skills.md": Scene(
        files={"learned.json": LEARNED_TURNS},
        turns=LEARNING,
        before={"hookline skills analyse": "export HOOKLINE_MODEL=scripted:$PWD/learned.json"},
        typed={"hookline skills review": "accept\n"},
    ),
    "docs/guides/import.md": Scene(
        files={"transcripts/session.jsonl": TRANSCRIPT, "requests.jsonl": REQUESTS, "spans.jsonl": SPANS}
    ),
    "docs/guides/suggest.md": Scene(
        files={
            "month.jsonl": "".join(f"{json.dumps(line)}\n" for line in month()),
            "red-team/attacks.moments": "".join(f"{json.dumps(line)}\n" for line in red_team()),
        }
    ),
    "docs/guides/tapes.md": Scene(
        files={"new_rules.py": NO_NOTES, "notes.txt": "Buy milk.\n"},
        turns=[{"tool": "read_file", "arguments": {"path": "notes.txt"}}, "Milk."],
        exits={"hookline replay tapes --since": 1},
    ),
    "docs/guides/tickets.md": Scene(files={"hookline.toml": 'tickets = "tickets.db"\n'}),
    "docs/guides/trust.md": Scene(
        files={"hookline.toml": 'hooks = ["rules.py"]\n', "rules.py": NO_NOTES},
        env={"HOOKLINE_TRUST": ""},
        typed={"hookline trust ": "y\n"},
        exits={'hookline run "What is new?"': 2, 'hookline run "What is new?" --': 0},
    ),
    "docs/guides/claude-code-hooks.md": Scene(
        turns=[{"tool": "write_file", "arguments": {"path": "app/.env", "content": "KEY=1"}}, "I may not."],
    ),
    "docs/guides/coding-agents.md": Scene(exits={"hookline agent-hook --agent codex rules.py --once": 2}),
    "docs/guides/rules.md": Scene(exits={"hookline agent-hook --agent codex codex.toml --once": 2}),
    "docs/guides/cookbook.md": Scene(checkout=True),
    "examples/README.md": Scene(checkout=True),
}
