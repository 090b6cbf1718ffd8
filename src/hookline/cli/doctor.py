"""``hookline doctor``: check the installation, coding agents, the sandbox of the shell, and the configured model."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.text import Text

from .. import __version__
from .._base.errors import install_command, is_installed
from .._base.text import error_text
from .._kernel.errors import HooklineError
from ..config.sources import Configuration
from .errors import BAD_INPUT
from .help import Command
from .options import with_settings
from .output import console, print_problems, print_table, short_path
from .terminal import can_move_cursor
from .text import printable, short

EPILOG = """
Examples:
  hookline doctor
  hookline doctor --model openai:gpt-5-mini
  hookline doctor --no-model
  hookline doctor --no-model --no-sandbox --no-agents
"""

EXTRAS = {
    "local": ("xllamacpp",),
    "openai": ("openai",),
    "anthropic": ("anthropic",),
    "bedrock": ("boto3",),
    "vertex": ("openai", "google.auth", "requests"),
    "mcp": ("mcp",),
    "otel": ("opentelemetry",),
    "metrics": ("prometheus_client",),
    "sensitive": ("phonenumbers", "stdnum"),
    "prices": ("genai_prices",),
    "sign": ("cryptography",),
    "backtest": ("duckdb", "pyarrow"),
    "rules": ("cel_expr_python",),
    "channels": ("aiomqtt", "telegram", "starlette", "uvicorn", "websockets"),
    "slack": ("slack_bolt", "aiohttp", "starlette", "uvicorn", "websockets"),
    "postgres": ("psycopg", "procrastinate"),
    "server": ("a2a", "prometheus_client", "starlette", "uvicorn"),
    "cli": ("typer", "rich", "tomlkit"),
    "agent-hooks": ("agent_hooks",),
    "langchain": ("langchain",),
    "openai-agents": ("agents",),
    "pydantic-ai": ("pydantic_ai",),
    "strands": ("strands",),
    "google-adk": ("google.adk",),
    "agent-framework": ("agent_framework",),
}
"""The modules that each extra installs."""

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
GOOD, BAD, NOTE = "ok", "no", "-"

MAX_PINNED = 10
"""Maximum number of runs to show that no worker can continue."""

Check = tuple[str, str, str]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    settings = with_settings("model", "base_url", "api", "params", "runs", "approval_file", "database", "debug")
    app.command("doctor", cls=Command, epilog=EPILOG)(settings(doctor))


def doctor(
    config: Configuration,
    ask: Annotated[
        bool,
        typer.Option(
            "--model-test/--no-model", help="Ask the model for one word, or not. [default: ask]", show_default=False
        ),
    ] = True,
    try_sandbox: Annotated[
        bool,
        typer.Option(
            "--sandbox-test/--no-sandbox",
            help="Try to get out of the shell's sandbox, or not. [default: try]",
            show_default=False,
        ),
    ] = True,
    agents: Annotated[
        bool,
        typer.Option(
            "--agents/--no-agents",
            help="Look at the hooks of coding agents, or not. [default: look]",
            show_default=False,
        ),
    ] = True,
) -> int:
    """Check the installation, coding agents, the shell's sandbox and the configured model."""
    print_table(
        ("", "what", "state"), ((_mark(mark), what, state) for mark, what, state in run_checks(config)), keep=("what",)
    )
    if agents:
        from .coding_agents import show_agents

        show_agents()
    confined = show_attempts() if try_sandbox else True
    if not ask:
        return 0 if confined else BAD_INPUT
    out = console()
    out.print(f"\nAsking {printable(config.settings.model, keep='')} for one word …", markup=False)
    good, answer = ask_model(config)
    out.print(printable(answer, keep=""), style="green" if good else "red", markup=False)
    return 0 if good and confined else BAD_INPUT


def _mark(mark: str) -> Any:

    return Text(mark, style={GOOD: "green", BAD: "red"}.get(mark, "dim"))


def run_checks(config: Configuration) -> Iterator[Check]:
    """Yield the result of each check: its mark, its name, and its state or how to fix it."""
    from ..providers.local import weights
    from ..providers.vendors import VENDORS

    good_python = sys.version_info >= (3, 11)
    yield GOOD if good_python else BAD, "Python", f"{platform.python_version()} on {platform.system()}"
    yield GOOD, "hookline", __version__
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if not is_installed(module)]
        yield (
            (NOTE, f"extra {extra}", f"not installed: {install_command(extra)}")
            if missing
            else (GOOD, f"extra {extra}", "installed")
        )
    yield from _sandbox_checks()
    if weights.is_fetched():
        yield GOOD, "weights", f"{weights.NAME} in {short_path(str(weights.weights_path()))}"
    else:
        yield NOTE, "weights", f"{weights.NAME} not downloaded: hookline models pull"
    for name in (*KEYS, *(key for vendor in VENDORS.values() for key in vendor.keys if os.environ.get(key))):
        there = bool(os.environ.get(name))
        yield GOOD if there else NOTE, name, "set" if there else "not set"
    found = f"{short_path(str(config.file))}, trusted" if config.file else "no file found; using the defaults"
    yield GOOD if config.file else NOTE, "configuration", found
    yield _audit_check(config)
    yield _encryption_check()
    yield _retention_check(config)
    yield _halt_check(config)
    if config.settings.database:
        yield (database := _database_check(config.settings.database))
        if database[0] == GOOD:
            yield from _durable_runs_checks(config.settings.database)
    yield _consistency_check(config)
    yield from _channel_checks(config)
    if sys.stdout.isatty():
        size = shutil.get_terminal_size()
        look = "with colours" if can_move_cursor(True) else "plain"
        yield GOOD, "terminal", f"{os.environ.get('TERM', 'unknown')}, {size.columns} by {size.lines}, {look}"
    else:
        yield NOTE, "terminal", "none: output is plain, and approval prompts are not possible"


def _database_check(url: str) -> Check:
    from ..stores.paths import without_password
    from ..stores.schemas import databases_at
    from .db import table_state

    try:
        states = {each.schema.name: table_state(each) for each in databases_at(url)}
    except HooklineError as error:
        return BAD, "database", error_text(error)
    bad = [f"{name}: {state}" for name, state in states.items() if state != "ok"]
    return (BAD, "database", bad[0]) if bad else (GOOD, "database", f"{without_password(url)}, all tables up to date")


def _durable_runs_checks(url: str) -> Iterator[Check]:
    """Say how many durable runs there are, who executes them, and which of them nobody can continue."""
    from ..stores.runs import RunStore

    store = RunStore(url)
    try:
        states = store.journal.states()
        queued = store.count(served=True, states=("queued",))
        workers, pinned = store.workers.running(), store.workers.pinned(limit=MAX_PINNED)
    finally:
        store.close()
    found = ", ".join(f"{count:,} {name}" for name, count in ({"queued": queued} | states).items() if count)
    if states["expired"]:  # another process should have taken it over by now
        yield BAD, "durable runs", f"{found}: no process took over the expired ones: hookline worker"
    else:
        yield GOOD, "durable runs", found or "none is unfinished"
    for digest in sorted({digest for worker in workers for digest in worker.digests}):
        yield GOOD, "workers", f"{sum(digest in worker.digests for worker in workers)} with digest {digest}"
    if not workers:
        yield BAD if queued else NOTE, "workers", "none is running: hookline worker, or hookline serve --durable"
    for run in pinned:
        yield BAD, "pinned run", run.problem


def _consistency_check(config: Configuration) -> Check:
    from ..config.factory import run_store
    from ..server.consistency import ConsistencyCheck

    if config.settings.runs is None:
        return NOTE, "stored runs", "none (runs = none)"
    store = run_store(config.settings, config.settings.runs)
    try:
        found = ConsistencyCheck(store).find()
    except HooklineError as error:
        return BAD, "stored runs", error_text(error)
    finally:
        store.close()
    if not found:
        return GOOD, "stored runs", "no contradictions"
    more = f", and {len(found) - 1:,} more" if len(found) > 1 else ""
    return BAD, "stored runs", f"{found[0].problem}{more}: hookline db repair"


def _halt_check(config: Configuration) -> Check:
    from ..config.factory import halts_of
    from .halt import halt_text

    halts = halts_of(config.settings)
    if halts is None:
        return NOTE, "stop switch", "none (runs = none)"
    halt = halts.current()
    return GOOD if halt is None else BAD, "stop switch", halt_text(halt, halts.place)


def _audit_check(config: Configuration) -> Check:
    from ..config.factory import audit_path
    from ..stores.paths import without_password

    path = audit_path(config.settings)
    if path is None:
        return NOTE, "audit log", "off (audit = none)"
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    index = config.settings.audit_index
    indexed = f", indexed in {short_path(without_password(index))}" if index else ""
    return GOOD, "audit log", f"{short_path(path)}, {f'{size:,} bytes' if size else 'no records yet'}{indexed}"


def _encryption_check() -> Check:
    from .._sensitive.encryption import FILE_VARIABLE, KEYS_VARIABLE, data_keys

    try:
        keys = data_keys()
    except HooklineError as error:
        return BAD, "encryption", error_text(error)
    if keys is None:
        off = f"off: journals and tapes are stored as they are; hookline db key makes a key for {KEYS_VARIABLE}"
        return NOTE, "encryption", f"{off} or {FILE_VARIABLE}"
    newest, *older = keys.ids
    reads = f", and reads with {', '.join(older)}" if older else ""
    return GOOD, "encryption", f"journals and tapes are written with the key {newest}{reads}"


def _retention_check(config: Configuration) -> Check:
    from ..server.options import ServerOptions

    served = config.settings.server or {}
    days = float(served.get("keep_days", ServerOptions().keep_days))
    until = "conversations of chat and channels, tapes, grants and memory stay until somebody deletes them"
    return NOTE, "retention", f"a server deletes texts of runs after {days:g} days; {until}"


def _channel_checks(config: Configuration) -> Iterator[Check]:
    """Create the built-in channels of the configuration without starting them. Others would run code to be checked."""
    from ..channels.factory import BUILT_IN, load_channel
    from ..config.settings import DeclaredChannel

    for item in config.settings.channels:
        declared = item if isinstance(item, DeclaredChannel) else DeclaredChannel(item)
        if declared.use not in BUILT_IN:
            continue
        name = f"channel {declared.name or declared.use}"
        try:
            load_channel(declared, config.home)
        except HooklineError as error:
            yield BAD, name, error_text(error)
        else:
            yield GOOD, name, "its settings are valid"


def _sandbox_checks() -> Iterator[Check]:
    from .._toolbox.sandbox import LEVELS, level_state

    states = [level_state(level) for level in LEVELS]
    works = any(not state.problem for state in states)
    for state in states:
        mark = GOOD if not state.problem else NOTE if works else BAD
        yield mark, f"sandbox {state.level}", state.problem or "works"
    if not works:
        yield BAD, "shell tool", 'refuses to start without a sandbox, unless it is switched off: level = "off"'


def show_attempts() -> bool:
    """Try to get out of the sandbox at each level that works here. Print the results, and return whether all held."""
    from .._toolbox.sandbox import LEVELS, Level, level_state
    from .._toolbox.sandbox_canaries import run_canaries

    levels: list[Level] = [level for level in LEVELS if not level_state(level).problem]
    if not levels:
        return True
    results = [list(run_canaries(level)) for level in levels]
    rows = []
    for number, attempts in enumerate(zip(*results, strict=True)):
        good, bad = ("works", "fails") if number == 0 else ("stopped", "NOT STOPPED")
        cells = [Text(good, style="green") if each.passed else Text(bad, style="bold red") for each in attempts]
        rows.append((attempts[0].attempt, *cells))
    print_table(("attempt", *levels), rows, title="Trying to get out of the shell's sandbox", keep=("attempt",))
    problems = [
        f"{level}: {each.attempt}: {short(each.output, 200)}"
        for level, attempts in zip(levels, results, strict=True)
        for each in attempts
        if not each.passed
    ]
    print_problems(problems)
    return not problems


def ask_model(config: Configuration) -> tuple[bool, str]:
    """Return whether the model answers, and its name and answer or the error."""
    import asyncio

    from .._kernel.payloads import ModelRequest
    from .._kernel.values import Message
    from ..config.factory import build_model
    from ..providers.local import weights

    if config.settings.model == "local" and not weights.is_fetched():
        return False, "no answer: the weights are not downloaded yet: hookline models pull"
    prompt = (Message("user", "Answer with one word: are you there?"),)
    began = time.monotonic()
    try:
        model = build_model(config.settings)
        request = ModelRequest(prompt, model=model.name, params={"max_tokens": 64, **config.settings.params})
        response = asyncio.run(model.complete(request))
    except (HooklineError, OSError) as error:
        return False, f"no answer: {short(error_text(error), 500)}"
    took = time.monotonic() - began
    name = response.model or model.name
    told = f"{name} ({response.provider or model.provider}) answered {short(response.content, 40)!r} after {took:.1f} s"
    if config.settings.model == "local":
        told += "\nIt picks tools; it is no chat partner. Larger models: hookline models"
    return True, told
