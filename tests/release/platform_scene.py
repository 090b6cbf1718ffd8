"""Things that work on every system: imports, runs, stores, logs, records, replays, commands and the server."""

import importlib
import io
import os
import pkgutil
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import hookline
from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.cli.app import run_app
from hookline.errors import HooklineError, NotInstalledError
from hookline.hooks import AuditLogHook, PathGuard, TapeHook
from hookline.tape import replay
from hookline.tools import file_tools, shell_tool

for module in pkgutil.walk_packages(hookline.__path__, "hookline."):
    if not module.name.endswith(("__main__", "_sandbox_launcher")):  # programs; the second is for Linux
        with suppress(NotInstalledError):
            importlib.import_module(module.name)


@tool
def send_mail(to: str) -> str:
    return f"sent to {to}"


@guard(BEFORE_TOOL, tools="send_*", timeout=30)  # in a thread
def stay_inside(ctx, request):
    if not request.arguments["to"].endswith("@example.com"):
        return HookResult.block("Mail goes to colleagues only.")


def clerk(*hooks, **options):
    turns = [
        call("send_mail", to="rival@example.org"),
        call("read_file", path="in.txt"),
        call("read_file", path="../scene.txt"),
        call("write_file", path="out.txt", content="done"),
        reply("ready"),
    ]
    tools = [send_mail, *file_tools("files", write=True)]
    guards = [stay_inside, PathGuard("files", write=True)]
    return Agent("clerk", llm=ScriptedModel(turns), tools=tools, hooks=[*guards, *hooks], **options)


def command(*args):
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        code = run_app(list(args))
    print(f"hookline {args[0]}: {code}")
    return out.getvalue()


os.mkdir("files")
Path("files/in.txt").write_text("hello")
result = clerk(AuditLogHook("audit.jsonl"), runs="runs.db", record="records").run("Go.")
print(result.status, Path("files/out.txt").read_text())
print([message.content.partition("\n")[0] for message in result.messages if message.role == "tool"][:3])

clerk(TapeHook("run.tape")).run("Go.")
print("same" if replay("run.tape", clerk()).same else "different")

try:
    print(shell_tool("files").name)
except HooklineError as error:
    print(error)

print(command("points").count("before_tool") > 0, "stay_inside" in command("explain", "run.tape"))
print(command("audit", "verify", "audit.jsonl").strip())
