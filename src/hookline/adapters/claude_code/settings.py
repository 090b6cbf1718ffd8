"""Read the hooks in settings files of Claude Code, and report everything in them that cannot run here.

A settings file is ``{"hooks": {EVENT: [{"matcher": TEXT, "hooks": [HANDLER]}]}}`` among other settings, which belong to
Claude Code and are not read.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..._base.files import project_name, user_folder
from ..._base.text import closest_match, did_you_mean, error_text, is_number
from ..._kernel.errors import RegistrationError
from ..._net.urls import UrlError, parse_url
from ...config.trust import command_scripts, with_imports
from ...plugins.trust import check_file
from ..coding_agents.codecs.claude import MANAGED
from .matching import Matcher, Rule
from .protocol import EVENTS

OnFailure = Literal["open", "block", "closed"]
Level = Literal["managed", "user", "project", "local", "given"]

MOMENTS = frozenset(
    """
    PreToolUse PostToolUse PostToolUseFailure PostToolBatch PermissionRequest UserPromptSubmit SessionStart SessionEnd
    Stop SubagentStart SubagentStop PreCompact PostCompact Notification
    """.split()  # noqa: SIM905
)
"""The events of Claude Code that happen in Hookline's loop."""
TOOL_EVENTS = frozenset(("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest"))
"""The events about one tool call. Only there a handler may have ``if``."""
_WITHOUT_MATCHER = frozenset(("UserPromptSubmit", "PostToolBatch", "Stop"))
HANDLER_TYPES = ("command", "http", "mcp_tool", "prompt", "agent")
_TIMEOUTS = {"UserPromptSubmit": 30.0, "SessionEnd": 1.5}
_TIMEOUT = 600.0
MAX_SESSION_END = 60.0
"""The longest time that all handlers of ``SessionEnd`` may take together, if their settings ask for more than 1.5 s."""
_OCCURRING = {
    "SessionStart": ("startup", "resume", "clear", "compact"),
    "Notification": ("permission_prompt",),
    "PreCompact": ("auto",),
    "PostCompact": ("auto",),
}
"""The values that a matcher can select here, for events at which Claude Code has more of them."""
_MAX_FILE = 5_000_000
_PLACEHOLDER = re.compile(r"\$(?:\{(CLAUDE_[A-Z_]+)\}|(CLAUDE_[A-Z_]+)\b)")


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """One hook of Claude Code: a command or a URL, and when it is called.

    Args:
        event: the event.
        matcher: selects by the value that the event matches on, such as the name of the tool.
        condition: the rule in ``if``.
        command: the command line for a shell, or with ``args`` the program.
        args: the arguments of the program; ``None`` for a command line.
        shell: the shell of a command line.
        url: where the input is posted to, for a handler of type ``http``.
        headers: headers of that request. ``$NAME`` stands for an environment variable.
        env_names: the environment variables that headers may use.
        timeout: seconds.
        background: whether the loop does not wait for it.
        wakes: whether its exit code 2 reaches the model although it runs in the background.
        on_failure: what happens if it cannot be run, takes too long or ends in another unexpected way.
        env: variables for its process that depend on the file, such as ``CLAUDE_PLUGIN_ROOT``.
        scripts: the files of the project that the command names, which need trust.
        where: the place in the settings, for messages.
    """

    event: str
    matcher: Matcher
    condition: Rule | None = None
    command: str = ""
    args: tuple[str, ...] | None = None
    shell: Literal["bash", "powershell"] = "bash"
    url: str = ""
    headers: Mapping[str, str] = {}
    env_names: frozenset[str] = frozenset()
    timeout: float
    background: bool = False
    wakes: bool = False
    on_failure: OnFailure = "open"
    env: Mapping[str, str] = {}
    scripts: tuple[Path, ...] = ()
    where: str

    @property
    def label(self) -> str:
        """A short name for messages: the command or the URL."""
        text = self.url or " ".join((self.command, *(self.args or ())))
        return text if len(text) <= 80 else f"{text[:77]}..."

    @property
    def identity(self) -> tuple[Any, ...]:
        """The same for identical handlers, of which only one is called."""
        headers = tuple(sorted(self.headers.items()))
        return self.event, self.command, self.args, self.shell, self.url, headers, self.condition, self.on_failure


class SettingsFile(msgspec.Struct, frozen=True):
    """A settings file: where it is, and whose settings it has."""

    path: Path
    level: Level


class ClaudeSettings(msgspec.Struct, frozen=True):
    """What settings files say about hooks: the handlers, the files they were read from, and notes for the user."""

    handlers: tuple[Handler, ...]
    files: tuple[Path, ...]
    notes: tuple[str, ...]

    @property
    def scripts(self) -> tuple[Path, ...]:
        """The files of the project that the handlers run."""
        return tuple(dict.fromkeys(script for handler in self.handlers for script in handler.scripts))


def find_files(places: Iterable[str | os.PathLike[str]]) -> list[SettingsFile]:
    """Return the settings files of these places, those with the lowest precedence first.

    A file stands for itself. A folder is a project: the settings of the user, of the project, of the user for this
    project (``settings.local.json``) and of the organisation, as far as they exist.

    Raises:
        RegistrationError: a place does not exist, or a project has no settings.
    """
    found: dict[Path, SettingsFile] = {}
    for place in places:
        path = Path(place).expanduser().absolute()
        if not path.is_dir():
            if not _is_file(path):
                raise RegistrationError(
                    f"there are no settings of Claude Code at {str(place)!r}: no such file or folder"
                )
            found.setdefault(path, SettingsFile(path, "given"))
            continue
        own = path / ".claude"
        candidates = [
            SettingsFile(Path.home() / ".claude" / "settings.json", "user"),
            SettingsFile(own / "settings.json", "project"),
            SettingsFile(own / "settings.local.json", "local"),
            SettingsFile(Path(MANAGED), "managed"),
        ]
        existing = [each for each in candidates if _is_file(each.path)]
        if not existing:
            raise RegistrationError(
                f"there are no settings of Claude Code for {str(path)!r}: neither in its .claude/settings.json nor in "
                "that of your home folder"
            )
        for each in existing:
            found.setdefault(each.path, each)
    return list(found.values())


def _is_file(path: Path) -> bool:
    """Return whether there is a settings file.

    Raises:
        RegistrationError: there is something else in its place, and its hooks might be missed.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_symlink():
            return False
        raise RegistrationError(f"{path} is a link to a file that does not exist") from None
    except OSError as error:
        raise RegistrationError(f"{path} cannot be read: {error_text(error)}") from error
    if not stat.S_ISREG(mode):
        raise RegistrationError(f"{path} is not a regular file, so it cannot be a settings file")
    return True


def read_settings(
    places: Iterable[str | os.PathLike[str]],
    *,
    project: Path,
    skip: Collection[str] = (),
    on_failure: OnFailure = "open",
    check: bool = True,
) -> ClaudeSettings:
    """Read and merge the hooks of settings files.

    Args:
        places: files, or folders of projects.
        project: the folder of the project, for ``$CLAUDE_PROJECT_DIR``.
        skip: types of handlers that are left out, with a note, although Hookline does not run them.
        on_failure: the failure policy of handlers that have none of their own.
        check: whether the files must be trusted.

    Raises:
        RegistrationError: a file is not valid, or has a handler of a type that Hookline does not run.
        UntrustedFileError: others could have written a file, or the user has not trusted it.
    """
    notes: list[str] = []
    tables: list[tuple[SettingsFile, dict[str, Any]]] = []
    for file in find_files(places):
        tables.append((file, _read(file.path, notes, check=check)))
    managed_only = any(file.level == "managed" and table.get("allowManagedHooksOnly") is True for file, table in tables)
    off = _disabled(tables)
    handlers: dict[tuple[Any, ...], Handler] = {}
    for file, table in tables:
        if off == file.path or (file.level != "managed" and (managed_only or off is not None)):
            why = f"{off} has disableAllHooks" if off is not None else "the organisation allows only its own hooks"
            if table.get("hooks"):
                notes.append(f"{file.path}: its hooks are not called, because {why}")
            continue
        if any(
            value is True for value in _table(table.get("enabledPlugins", {}), file.path, "enabledPlugins").values()
        ):
            notes.append(
                f"{file.path}: enabledPlugins: hooks of Claude Code's plugins are not read; "
                "name their hooks/hooks.json too"
            )
        reader = _SettingsReader(file.path, project, skip, on_failure, notes)
        for handler in reader.handlers(table.get("hooks", {})):
            handlers.setdefault((*handler.identity, handler.matcher.text), handler)
    found = ClaudeSettings(tuple(handlers.values()), tuple(file.path for file, _ in tables), tuple(notes))
    if check:
        for script in found.scripts:
            check_file(script, script.read_bytes())
    return found


def project_files(places: Iterable[str], home: Path) -> list[Path]:
    """Return the settings files in these places and the scripts they run, as far as they belong to a project.

    Nothing is executed, and mistakes are not reported: using the settings reports them.
    """
    found: list[Path] = []
    for place in places:
        try:
            files = find_files([place])
        except RegistrationError:
            continue
        found += [file.path for file in files if file.level not in ("user", "managed")]
        try:
            settings = read_settings([place], project=project_of(place), skip=HANDLER_TYPES, check=False)
        except RegistrationError:
            continue
        found += settings.scripts
    return [*found, *(path for path in with_imports(found, (home, Path.cwd())) if path not in found)]


def project_of(place: str | os.PathLike[str]) -> Path:
    """Return the folder of the project that a place belongs to: that of its ``.claude``, or else the working folder."""
    path = Path(place).expanduser().absolute()
    if path.is_dir():
        return path.resolve()
    return path.parent.parent.resolve() if path.parent.name == ".claude" else Path.cwd()


def _disabled(tables: Iterable[tuple[SettingsFile, Mapping[str, Any]]]) -> Path | None:
    """Return the file whose ``disableAllHooks`` counts, if it is on: that of the highest precedence that has one."""
    found: Path | None = None
    for file, table in tables:
        value = table.get("disableAllHooks")
        if value is not None and not isinstance(value, bool):
            raise RegistrationError(f"{file.path}: disableAllHooks must be true or false, not {value!r:.80}")
        if value is not None:
            found = file.path if value else None
    return found


def _read(path: Path, notes: list[str], *, check: bool) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise RegistrationError(f"{path} cannot be read: {error_text(error)}") from error
    if len(data) > _MAX_FILE:
        raise RegistrationError(f"{path} is longer than {_MAX_FILE} bytes, so it is not a settings file")
    if check:
        check_file(path, data)
    try:
        table = msgspec.json.decode(data) if data.strip() else {}
        repeated = _repeated_keys(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RegistrationError(f"{path} is not valid JSON: {error_text(error)}") from error
    notes += [f"{path}: {key!r:.80} occurs twice in one object, and only the last one counts" for key in repeated]
    return _table(table, path, "the file")


def _repeated_keys(data: bytes) -> list[str]:
    """Return the keys that occur twice in an object of valid JSON: the hooks under the first one are lost."""
    found: dict[str, None] = {}

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for key, _ in pairs:
            found.update({key: None} if key in seen else {})
            seen.add(key)

    json.loads(data or b"{}", object_pairs_hook=check)
    return list(found)


def _table(value: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RegistrationError(f"{path}: {where} must be a JSON object, not {value!r:.80}")
    return value


class _SettingsReader:
    """Reads the hooks of one file."""

    def __init__(
        self, path: Path, project: Path, skip: Collection[str], on_failure: OnFailure, notes: list[str]
    ) -> None:
        self._path, self._project, self._skip, self._notes = path, project, skip, notes
        self._usual_on_failure: OnFailure = on_failure
        self._env = {"CLAUDE_PROJECT_DIR": str(project)}
        if path.name == "hooks.json":  # of a plugin, whose folder is above hooks/
            root = path.parent.parent if path.parent.name == "hooks" else path.parent
            self._env["CLAUDE_PLUGIN_ROOT"] = str(root)
            self._env["CLAUDE_PLUGIN_DATA"] = str(user_folder("data") / "claude-plugins" / project_name(root))

    def wrong(self, where: str, problem: str) -> RegistrationError:
        return RegistrationError(f"{self._path}: {where}: {problem}")

    def handlers(self, hooks: Any) -> Iterable[Handler]:
        if not isinstance(hooks, dict):
            raise self.wrong("hooks", f"expected an object with a list for each event, not {hooks!r:.80}")
        for event, groups in hooks.items():
            if not self._has_moment(event):
                continue
            if not isinstance(groups, list):
                raise self.wrong(f"hooks.{event}", f"expected a list, not {groups!r:.80}")
            for number, group in enumerate(groups):
                yield from self._group(event, group, f"hooks.{event}[{number}]")

    def _has_moment(self, event: str) -> bool:
        if event in MOMENTS:
            return True
        if event not in EVENTS and (meant := closest_match(event, EVENTS, cutoff=0.8)):
            raise self.wrong(f"hooks.{event}", f"there is no event {event!r}. Did you mean {meant!r}?")
        kind = "has no moment for this event" if event in EVENTS else "does not know this event"
        self._notes.append(f"{self._path}: hooks.{event}: Hookline {kind}, so its hooks are not called")
        return False

    def _group(self, event: str, group: Any, where: str) -> Iterable[Handler]:
        if not isinstance(group, dict) or not isinstance(group.get("hooks"), list):
            raise self.wrong(where, f'expected {{"matcher": TEXT, "hooks": [...]}}, not {group!r:.80}')
        given = group.get("matcher", "")
        if not isinstance(given, str):
            raise self.wrong(f"{where}.matcher", f"expected a text, not {given!r:.80}")
        try:
            matcher = Matcher("" if event in _WITHOUT_MATCHER else given)
        except ValueError as error:
            raise self.wrong(f"{where}.matcher", str(error)) from None
        values = _OCCURRING.get(event)
        if values is not None and not any(map(matcher.matches, values)):
            self._notes.append(
                f"{self._path}: {where}: it is never called, because {given!r:.80} does not occur here, "
                f"only {', '.join(values)}"
            )
        for number, handler in enumerate(group["hooks"]):
            place = f"{where}.hooks[{number}]"
            if not isinstance(handler, dict):
                raise self.wrong(place, f"expected an object, not {handler!r:.80}")
            if (made := self._handler(event, matcher, handler, place)) is not None:
                yield made

    def _handler(self, event: str, matcher: Matcher, given: dict[str, Any], where: str) -> Handler | None:
        kind = given.get("type")
        if kind not in HANDLER_TYPES:
            hint = did_you_mean(str(kind), HANDLER_TYPES)
            raise self.wrong(f"{where}.type", f"expected one of {', '.join(HANDLER_TYPES)}; got {kind!r:.80}.{hint}")
        if kind not in ("command", "http"):
            if kind not in self._skip:
                raise self.wrong(
                    where,
                    f"Hookline does not run handlers of type {kind!r}, and an agent without this one may lack a guard. "
                    f"Remove it, write it as a command, or leave it out knowingly with skip=[{kind!r}]",
                )
            self._notes.append(f"{self._path}: {where}: a handler of type {kind!r} is left out, as skip= says")
            return None
        if event == "SessionStart" and kind == "http":
            raise self.wrong(where, "SessionStart takes only commands; Claude Code does not call a URL there either")
        condition = self._condition(event, given.get("if"), where)
        if condition is False:
            return None
        fields = self._command(given, where) if kind == "command" else self._http(given, where)
        return Handler(
            event=event,
            matcher=matcher,
            condition=condition,
            timeout=self._timeout(event, given, where),
            on_failure=self._on_failure(given, where),
            env=self._env,
            where=f"{self._path}: {where}",
            **fields,
        )

    def _command(self, given: dict[str, Any], where: str) -> dict[str, Any]:
        command, args = given.get("command"), given.get("args")
        if not isinstance(command, str) or not command.strip() or "\0" in command:
            raise self.wrong(f"{where}.command", f"expected a command, not {command!r:.80}")
        if args is not None and not (isinstance(args, list) and all(isinstance(arg, str) for arg in args)):
            raise self.wrong(f"{where}.args", f"expected a list of texts, not {args!r:.80}")
        shell = given.get("shell", "bash")
        if shell not in ("bash", "powershell"):
            raise self.wrong(f"{where}.shell", f"expected bash or powershell, not {shell!r:.80}")
        line = " ".join((command, *(args or ())))
        scripts = command_scripts([self._filled(line)], self._project)
        fields: dict[str, Any] = {"command": command, "shell": shell, "scripts": tuple(scripts)}
        if args is not None:
            fields["command"], fields["args"] = self._filled(command), tuple(map(self._filled, args))
        wakes = self._flag(given, "asyncRewake", where)
        return {**fields, "background": self._flag(given, "async", where) or wakes, "wakes": wakes}

    def _filled(self, text: str) -> str:
        """Return a text with the variables that Claude Code sets. A shell would expand them itself."""
        return _PLACEHOLDER.sub(lambda found: self._env.get(found[1] or found[2], found[0]), text)

    def _http(self, given: dict[str, Any], where: str) -> dict[str, Any]:
        url, headers, names = given.get("url"), given.get("headers", {}), given.get("allowedEnvVars", [])
        try:
            parse_url(url if isinstance(url, str) else "")
        except UrlError as error:
            raise self.wrong(f"{where}.url", f"{url!r:.200} cannot be used: {error}") from None
        if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
            raise self.wrong(f"{where}.headers", "expected an object of texts")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise self.wrong(f"{where}.allowedEnvVars", "expected a list of names")
        return {"url": url, "headers": headers, "env_names": frozenset(names)}

    def _condition(self, event: str, rule: Any, where: str) -> Rule | Literal[False] | None:
        """Return the rule in ``if``; false if the handler can never be called."""
        if rule is None:
            return None
        if event not in TOOL_EVENTS:
            self._notes.append(f"{self._path}: {where}: it is never called, because 'if' is for tool events only")
            return False
        try:
            return Rule(rule)
        except (TypeError, ValueError) as error:
            raise self.wrong(f"{where}.if", str(error)) from None

    def _timeout(self, event: str, given: dict[str, Any], where: str) -> float:
        seconds = given.get("timeout", _TIMEOUTS.get(event, _TIMEOUT))
        if not is_number(seconds) or not 0 < seconds < 1e7:
            raise self.wrong(f"{where}.timeout", f"expected a positive number of seconds, not {seconds!r:.80}")
        return min(float(seconds), MAX_SESSION_END) if event == "SessionEnd" else float(seconds)

    def _on_failure(self, given: dict[str, Any], where: str) -> OnFailure:
        theirs, ours = given.get("onFailure"), given.get("on_failure")
        if ours is not None and ours not in ("open", "block", "closed"):
            raise self.wrong(f"{where}.on_failure", f"expected open, block or closed, not {ours!r:.80}")
        if theirs not in (None, "block", "continue", "allow"):
            raise self.wrong(f"{where}.onFailure", f"expected block, not {theirs!r:.80}")
        return ours or (self._usual_on_failure if theirs is None else "block" if theirs == "block" else "open")

    def _flag(self, given: dict[str, Any], name: str, where: str) -> bool:
        value = given.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(f"{where}.{name}", f"expected true or false, not {value!r:.80}")
        return value
