"""``hookline trust``: show a configuration file and the code that it loads, and trust them."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from .._kernel.errors import HooklineError
from ..config.errors import ConfigError
from ..config.secrets import mask
from ..config.settings import DeclaredHook
from ..config.sources import Configuration, load
from ..config.trust import (
    ProjectFiles,
    TrustCheck,
    TrustStore,
    check_trust,
    code_files,
    commands_with_variables,
    file_digest,
    other_programs,
    project_files,
    trust_variable,
    trusted_files,
)
from ..plugins.trust import only_trusted
from .errors import CANCELLED, COMPLETED, print_note
from .help import Command
from .output import print_table, short_path, state_text, value_text
from .text import counted, printable

MAX_VARIABLES = 10
"""Number of commands with variables that the question shows."""
EPILOG = """
A configuration file names code that runs with your permissions, and servers that receive your API keys.
Hookline uses it after you have trusted it once, and asks again when it or its code changes.

Examples:
  hookline trust
  hookline trust ../other/hookline.toml
  hookline trust --list
  hookline trust --revoke .
"""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("trust", cls=Command, epilog=EPILOG)(trust)


def trust(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            show_default=False,
            help="A configuration file, its folder, or a file of code. [default: the file used in this folder]",
        ),
    ] = ".",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List the trusted files, and whether they have changed.")
    ] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Stop trusting the file and its code.")] = False,
) -> int:
    """Show a configuration file and the code that it loads, and trust them."""
    store = TrustStore()
    if show:
        return _list(store)
    if revoke:
        return _revoke(store, Path(path))
    check, config = _check(store, Path(path))
    _show(check, config)
    if check.passed:
        sys.stderr.write("All these files are already trusted.\n")
        return COMPLETED
    if not yes:
        if not _has_terminal():
            raise ConfigError("there is no terminal to ask at: read the files above, then add --yes")
        if not _ask():
            sys.stderr.write("Not trusted.\n")
            return CANCELLED
    store.trust(check.path, check.digests)
    sys.stderr.write(f"Trusted: {counted(len(check.digests), 'file')}.\n")
    return COMPLETED


def require_trust(config: Configuration, *, given: bool) -> AbstractContextManager[None]:
    """Return a block in which the configuration may be used; ask the user first if it is not trusted.

    Args:
        config: the configuration.
        given: whether the user passed ``--trust``.

    Raises:
        ConfigError: the configuration is not trusted, and there is no terminal to ask at, or the answer is no.
    """
    if config.file is None or given or trust_variable(os.environ):
        return nullcontext()
    store, files = TrustStore(), _files_of(config)
    check = check_trust(store, config.file.resolve(), config.digest, files)
    if not check.passed:
        _show(check, config)
        if not (_has_terminal() and _ask()):
            raise ConfigError(_explain(check))
        store.trust(check.path, check.digests)
    return only_trusted(trusted_files(store, files))


def trust_notes(config: Configuration) -> Iterable[str]:
    """Yield a note if the configuration file is not trusted, for commands that only show it."""
    if config.file is not None and not trust_variable(os.environ):
        check = check_trust(TrustStore(), config.file.resolve(), config.digest, _files_of(config))
        if not check.passed:
            yield f"{_explain(check)}. This command only reads its settings, and runs nothing"


def is_trusted(config: Configuration) -> bool:
    """Whether a command that only shows settings may use one that reaches out, such as the address of a database."""
    return not list(trust_notes(config))


def trust_new(paths: Iterable[Path]) -> None:
    """Trust files that the user has just created with a command, together. The first one names the record."""
    files = {path.resolve(): file_digest(path, as_settings=True) for path in paths}
    try:
        TrustStore().trust(next(iter(files)), files)
    except ConfigError as error:
        print_note(f"hookline will ask before it uses these files: {error}")


def keep_trust(config: Configuration, path: Path, more: Iterable[Path] = ()) -> None:
    """Trust a configuration file again after a command has edited it, if it was trusted before or is new.

    Args:
        config: the configuration before the change.
        path: the file.
        more: code that the file now loads, and that the user has agreed to.
    """
    store, path = TrustStore(), path.resolve()
    if config.file is not None and not store.is_trusted(path, config.digest):
        return  # it was used with --trust
    record = store.records().get(str(path))
    files = {Path(name): seen for name, seen in record.files.items()} if record is not None else {}
    files |= {file.resolve(): file_digest(file) for file in more}
    store.trust(path, {**files, path: file_digest(path, as_settings=True)})


def _files_of(config: Configuration) -> ProjectFiles:
    """Return the files of a configuration, with those of its personalities."""
    files: list[Path] = []
    references: list[str] = []
    if folder := config.declared.get("personalities"):
        from ..teams.personality import TEXT, PersonalityFiles, main_files

        try:
            mains = main_files(Path(folder))
        except ConfigError:  # using it reports the error
            mains = []
        for main in mains:
            files += [main, main.with_name(TEXT)]
            try:
                found = PersonalityFiles.read(main).personality()
            except HooklineError:  # the file is checked nevertheless, and using it reports the error
                continue
            uses = (*found.guards, *(found.tools or ()))
            references += [use if isinstance(use, str) else use.use for use in uses]
    declared = _claude_places(config.declared)
    given = [place for place in _claude_places(msgspec.structs.asdict(config.settings)) if place not in declared]
    if not declared and not given:
        return project_files(config, files, references)
    from ..adapters.claude_code.settings import project_files as claude_files

    project = project_files(config, [*files, *claude_files(declared, config.home)], references)
    return msgspec.structs.replace(project, named=(*project.named, *claude_files(given, config.home)))


def _claude_places(settings: Mapping[str, Any]) -> list[str]:
    """Return where settings of Claude Code are, by the setting ``claude_hooks`` and by declared hooks."""
    places: list[str] = list(settings.get("claude_hooks", ()))
    for hook in settings.get("hooks", ()):
        if isinstance(hook, DeclaredHook) and hook.use == "ClaudeHooks":
            named = hook.args.get("settings", ".")
            places += [named] if isinstance(named, str) else named
    return places


def _check(store: TrustStore, path: Path) -> tuple[TrustCheck, Configuration | None]:
    if path.is_file() and path.suffix != ".toml":
        return check_trust(store, path.resolve(), file_digest(path), code_files(path)), None
    config = load(file=path) if not path.is_dir() else load(folder=path)
    if config.file is None:
        for note in config.notes:
            print_note(note)
        raise ConfigError(f"there is no configuration file in {path.resolve()} or above it")
    return check_trust(store, config.file.resolve(), config.digest, _files_of(config)), config


def _list(store: TrustStore) -> int:
    records = store.records()
    if not records:
        sys.stdout.write("No files are trusted.\n")
        return COMPLETED
    rows = []
    for name, record in sorted(records.items()):
        states = [_state_now(Path(file), seen, as_settings=file == name) for file, seen in record.files.items()]
        state = next((state for state in ("missing", "changed") if state in states), "trusted")
        date = time.strftime("%Y-%m-%d", time.localtime(record.at))
        rows.append((short_path(name), len(record.files), date, state_text(state)))
    print_table(("path", "files", "since", "state"), rows, right=("files",), keep=("since", "state"))
    return COMPLETED


def _state_now(path: Path, seen: str, *, as_settings: bool) -> str:
    if not path.is_file():
        return "missing"
    try:
        return "trusted" if file_digest(path, as_settings=as_settings) == seen else "changed"
    except ConfigError:
        return "changed"


def _revoke(store: TrustStore, path: Path) -> int:
    target = path.resolve()
    if path.is_dir():
        found = load(folder=path).file
        target = target if found is None else found.resolve()
    if not store.revoke(target):
        raise ConfigError(f"{target} is not trusted: 'hookline trust --list' shows what is")
    sys.stdout.write(f"{printable(str(target))} is no longer trusted\n")
    return COMPLETED


def _show(check: TrustCheck, config: Configuration | None) -> None:
    """Print the settings of a file, and the files that it loads, to stderr. Their text cannot imitate this program.

    A terminal shows all settings: a command that looks like a password must not be hidden. Elsewhere, such as in a
    log, secrets are masked.
    """
    lines = [printable(str(check.path), keep="")]
    for name, value in (config.declared if config is not None else {}).items():
        plain = msgspec.to_builtins(value) if _has_terminal() else mask(value, name)
        first, *more = value_text(plain).split("\n")
        lines += [
            f"    {name} = {printable(first, keep='')}",
            *(f"        {printable(line, keep='')}" for line in more),
        ]
    known = [file for file, state in check.states.items() if state == "trusted"]
    for file, state in check.states.items():
        if state != "trusted" or len(known) == len(check.states):
            lines.append(f"  {state:<8} {printable(short_path(str(file)), keep='')}")
    if config is not None:
        servers = (*config.declared.get("mcp", ()), *config.declared.get("trusted_mcp", ()))
        if programs := other_programs(servers, config.home):
            names = printable(", ".join(programs), keep="")
            lines.append(f"  not covered: packages and further files that {names} may load or download")
        unknown = commands_with_variables(servers, config.home)
        shown = [*unknown[:MAX_VARIABLES], *(["..."] if len(unknown) > MAX_VARIABLES else [])]
        lines += [
            f"  not covered: files that variables name in: {printable(f'{each:.120}', keep='')}" for each in shown
        ]
    if 0 < len(known) < len(check.states):
        lines.append(f"  and {counted(len(known), 'file')} that you trust already")
    sys.stderr.write("\n".join(lines) + "\n")


def _explain(check: TrustCheck) -> str:
    untrusted = ", ".join(short_path(str(file)) for file, state in check.states.items() if state != "trusted")
    if check.states[check.path] == "new":
        why = "is not trusted"
    elif "changed" in check.states.values():
        why = f"or its code has changed since you trusted it: {untrusted}"
    else:
        why = f"loads code that is not trusted: {untrusted}"
    run = f"hookline trust {shlex.quote(str(check.path))}"
    return f"{check.path} {why}. Read the files, then run '{run}'; --trust uses them for this run only"


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask() -> bool:
    sys.stderr.write("Its code runs with your permissions. Trust these files? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
