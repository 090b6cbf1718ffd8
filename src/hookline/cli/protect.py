"""``hookline protect``: put hooks into the settings of coding agents, prove that they work, and take them out again."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .._base.files import user_folder
from .._base.text import did_you_mean
from ..adapters.coding_agents.options import AGENTS, Options, parse
from .agent_hook import settings_command, settings_text
from .errors import CANCELLED, COMPLETED, FAILED, print_error, print_note
from .help import Command
from .output import print_parts, print_table, short_path
from .text import indent_overflow, printable

if TYPE_CHECKING:
    from rich.text import Text

    from ..adapters.coding_agents.protection.changes import Change, Memory
    from ..adapters.coding_agents.protection.hosts import Found, Host
    from ..adapters.coding_agents.protection.proof import Proof
    from ..adapters.coding_agents.rules import Rules


EPILOG = f"""
Examples:
  hookline protect
  hookline protect codex gemini --rules rules.py
  hookline protect claude --project
  hookline protect --remove

AGENT is one of {", ".join(AGENTS)}; by default all that are on this machine. Without --rules, the
rules that the settings name already are kept, or else those in rules.py in Hookline's folder for your configuration,
which is written if it does not exist.

The command shows what it will write, and asks. Then it starts each agent once, in temporary folders and with a model of
its own on this machine, and sees that a call is denied: no account is used. What each agent needs beside its settings
is printed at the end.

Exit codes:
  0    the settings are written, and each proof that is possible here succeeded
  1    a proof failed: read what it says
  2    invalid input, or a settings file that cannot be read; nothing was written
  130  you said no; nothing was written
"""

RULES = '''# Your rules for all coding agents that hookline protect has set up.
# Change them as you like: they apply from the next call on.
# "." is the working folder of each session.

from hookline.hooks import PathGuard, SensitiveDataHook, TerminalGuard

# Programs that may run, with all your rights: npm test runs whatever
# package.json says.
ALLOWED = """
    git make npm npx pnpm yarn node python python3 pytest ruff mypy uv
    pip cargo go gradle mvn mkdir touch cp mv rm sed chmod
""".split()
ASK = [
    "git push *", "git reset --hard *", "git clean *",
    "npm publish *", "cargo publish *", "rm -r *",
]

hooks = [
    # Commands that only read run too, in the folder. Others are a question
    # where the agent can ask, and denied where it cannot. Always denied are
    # sudo, shells in shells, and commands that nobody can read.
    TerminalGuard(
        ".",
        allow=[f"{program} *" for program in ALLOWED],
        ask=ASK,
        unknown="ask",
        writes=True,
    ),
    # Only files in the folder, but none with secrets (.env, keys), and no
    # settings that run programs.
    PathGuard(".", write=True),
    # The model does not read keys and personal data in results.
    SensitiveDataHook(),
]
'''
"""The rules for a user who names none."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("protect", cls=Command, epilog=EPILOG)(protect)


def protect(
    agents: Annotated[
        list[str] | None, typer.Argument(metavar="AGENT", show_default=False, help="The coding agents.")
    ] = None,
    rules: Annotated[
        list[str] | None,
        typer.Option("--rules", metavar="RULES", help="The hooks, as for hookline agent-hook. Repeatable."),
    ] = None,
    project: Annotated[
        bool, typer.Option("--project", help="Write the settings of the project in this folder, not those of the user.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    no_proof: Annotated[bool, typer.Option("--no-proof", help="Do not start the agents to prove it.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take Hookline's entries out of the settings.")] = False,
) -> int:
    """Put hooks into the coding agents on this machine, and prove that a denial arrives."""
    from ..adapters.coding_agents.protection.changes import Memory

    for name in agents or ():
        if name not in AGENTS:
            hint = did_you_mean(name, AGENTS)
            raise typer.BadParameter(f"{name!r:.80} is not known.{hint} Known: {', '.join(AGENTS)}")
    memory = Memory()
    if remove:
        return _remove(agents or AGENTS, memory, project=project, yes=yes)
    found = _found(agents or ())
    plan = _Plan(found, rules or (), memory, project=project)
    plan.show()
    if plan.is_needed and not _confirmed(yes, "Write this?"):
        return CANCELLED
    plan.write()
    proofs = {} if no_proof else _prove(plan)
    plan.show_result(proofs)
    return FAILED if any(proof.state == "ran" or _failed(each, proof) for each, proof in proofs.items()) else COMPLETED


def _found(names: Sequence[str]) -> list[Found]:
    """Return the agents to protect.

    Raises:
        ProtectError: an agent is not on this machine, or none is.
    """
    from ..adapters.coding_agents.protection.changes import ProtectError
    from ..adapters.coding_agents.protection.hosts import HOSTS, find_hosts

    found = find_hosts()
    if not names:
        if not found:
            programs = ", ".join(program for host in HOSTS.values() for program in host.programs)
            raise ProtectError(
                f"there is no coding agent here: neither one of the programs {programs} nor their settings"
            )
        return found
    known = {each.host.name: each for each in found}
    for name in names:
        if name not in known:
            host = HOSTS[name]
            folder = short_path(str(host.folder(os.environ)))
            raise ProtectError(
                f"{host.title} is not on this machine: there is neither a program {host.programs[0]} on the path nor "
                f"a folder {folder}"
            )
    return [known[name] for name in dict.fromkeys(names)]


class _Plan:
    """What will be written, for each agent."""

    def __init__(self, found: Sequence[Found], rules: Sequence[str], memory: Memory, *, project: bool) -> None:
        from ..adapters.coding_agents.protection.changes import plan_protection

        self.found, self.memory, self.project = found, memory, project
        self.new_rules: Path | None = None
        self.paths = {each.host.name: settings_path(each.host, project=project) for each in found}
        options = {each.host.name: self._options(each.host, rules) for each in found}
        self.rules = list(dict.fromkeys(rule for each in options.values() for rule in each.rules))
        loaded: dict[tuple[str, ...], Rules] = {}
        self.changes: list[Change] = []
        self.unused: dict[str, list[str]] = {}
        for each in found:
            given = options[each.host.name]
            key = tuple(given.rules)
            if key not in loaded:
                loaded[key] = self._load(given.rules)
            text = settings_text(given, loaded[key], absolute=True)
            path = self.paths[each.host.name]
            self.changes.append(plan_protection(each.host, path, text, memory, project=project))
            for unused in loaded[key].not_called():
                self.unused.setdefault(unused, []).append(each.host.title)

    def _options(self, host: Host, rules: Sequence[str]) -> Options:
        """Return the options of the command: those that the settings have already, unless rules are given."""
        if rules:
            return Options(host.name, rules)
        if (before := own_options(host, self.paths[host.name])) is not None:
            return before
        default = default_rules()
        if not default.exists():
            self.new_rules = default
        return Options(host.name, [str(default)])

    def _load(self, rules: Sequence[str]) -> Rules:
        """Load rules, to know the events that they need. Those that are not written yet are loaded from a copy."""
        from ..adapters.coding_agents.rules import Rules

        if self.new_rules is None or list(rules) != [str(self.new_rules)]:
            return Rules.load(rules)
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "rules.py")
            copy.write_text(RULES, "utf-8")
            return Rules.load([str(copy)])

    @property
    def is_needed(self) -> bool:
        """Whether anything must be written."""
        return self.new_rules is not None or any(change.is_needed for change in self.changes)

    def show(self) -> None:
        """Print the agents, and everything that will be written."""
        rows = []
        for each, change in zip(self.found, self.changes, strict=True):
            state = "no change" if not change.is_needed else "new file" if change.before is None else "changes"
            rows.append((each.host.title, short_path(str(change.path)), state))
        print_table(("agent", "settings", ""), rows, keep=("agent", ""), title="Coding agents on this machine")
        names = ", ".join(printable(short_path(rule), keep="") for rule in self.rules)
        sys.stdout.write(f"\nRules: {names}\n")
        for each in self.found:
            for reason in each.host.switched_off(os.environ, Path.cwd()):
                print_note(f"{each.host.title} calls no hooks here: {reason}")
        if self.project:
            sys.stdout.write(
                "\nThese are settings of this project: they name paths of this machine, and whoever can change the\n"
                "project can remove them. Without --project, they are yours, in all projects.\n"
            )
        diffs = [_diff(change.path, change.before, change.after) for change in self.changes if change.is_needed]
        if self.new_rules is not None:
            diffs.insert(0, _diff(self.new_rules, None, RULES.encode()))
        _print_diffs(diffs)

    def write(self) -> None:
        """Write everything."""
        from ..adapters.coding_agents.protection.changes import apply_change, write_rules

        if self.new_rules is not None:
            write_rules(self.new_rules, RULES.encode(), self.memory)
        for change in self.changes:
            if change.is_needed:
                apply_change(change, self.memory)

    def show_result(self, proofs: dict[str, Proof]) -> None:
        """Print what was written and proved, and what the user must do."""
        rows = []
        for each, change in zip(self.found, self.changes, strict=True):
            proof = proofs.get(each.host.name)
            state = "written" if change.is_needed else "as it was"
            version = proof.version or "-" if proof is not None else "-"
            rows.append((each.host.title, version, state, proof_text(proof)))
        print_table(
            ("agent", "version", "settings", "proof"), rows, keep=("agent", "version", "settings"), title="Result"
        )
        denied = [proof for proof in proofs.values() if proof.state == "denied"]
        if denied:
            _say(
                "\nDenied: with these settings, the agent in this version did not run a call that Hookline denied, and "
                "its model read the reason. It ran in temporary folders, with a model on this machine and no account."
            )
        ran = [each.host.title for each in self.found if (p := proofs.get(each.host.name)) and p.state == "ran"]
        if ran:
            print_error(f"{', '.join(ran)} ran a call that must be denied: do not rely on these hooks there")
        steps = [(each.host.title, step) for each in self.found if (step := next_step(each.host, project=self.project))]
        steps.append(("Each agent", "start a new session. To see a denial, ask it to run: touch hookline-proof"))
        for unused, titles in self.unused.items():
            steps.append(("Note", f"this has no effect in {', '.join(titles)}: {unused}"))
        steps.append(
            ("Then", "hookline doctor shows the last call of each agent; hookline protect --remove undoes this")
        )
        _print_steps(steps)


def settings_path(host: Host, *, project: bool) -> Path:
    """Return the file of settings of an agent, for the user or for the project in the working folder."""
    return host.project_file(Path.cwd()) if project else host.user_file(os.environ)


def default_rules() -> Path:
    """Return the file with the rules of a user who names none."""
    return user_folder("config") / "rules.py"


def next_step(host: Host, *, project: bool) -> str:
    """Return what the user must do for an agent; empty if nothing."""
    if project:
        return host.project_note
    return host.next_step


def own_options(host: Host, path: Path) -> Options | None:
    """Return the options in the command that settings have for Hookline; ``None`` if there is none that can be used."""
    for words in own_commands(host, path):
        given = parse(words[words.index("agent-hook") + 1 :])
        if given is not None and not any("$" in rule for rule in given.rules):
            return given
    return None


def own_commands(host: Host, path: Path) -> list[list[str]]:
    """Return the commands that settings have for Hookline, each as words.

    Raises:
        ProtectError: the file cannot be read.
    """
    import shlex

    from ..adapters.coding_agents.protection.changes import entries_in
    from ..adapters.coding_agents.protection.settings import PLUGIN_MARK, command_of

    if not host.is_plugin:
        return [shlex.split(command_of(entry.handler)) for entry in entries_in(host, path)]
    try:
        text = path.read_text("utf-8")
        line = next(line for line in text.splitlines() if line.startswith("const COMMAND = "))
        words = json.loads(line.removeprefix("const COMMAND = "))
    except (OSError, UnicodeDecodeError, StopIteration, ValueError):
        return []
    return [words] if text.startswith(PLUGIN_MARK) and "agent-hook" in words else []


def is_of_this_installation(words: Sequence[str], agent: str) -> bool:
    """Return whether a command in settings starts the program of this installation."""
    import shlex

    def paths(command: Sequence[str]) -> list[str]:
        return [word for word in command[: command.index("agent-hook")] if os.path.isabs(word)]

    return paths(words) == paths(shlex.split(settings_command(Options(agent, ["rules.py"]))))


def _prove(plan: _Plan) -> dict[str, Proof]:
    """Prove that a denial arrives, for each agent."""
    from ..adapters.coding_agents.protection.proof import SECONDS, prove

    proofs = {}
    for each in plan.found:
        if not each.host.not_provable and each.program is not None:
            sys.stderr.write(f"Starting {each.host.title} with these settings (at most {SECONDS:.0f} s) ...\n")
            sys.stderr.flush()
        text = plan.paths[each.host.name].read_text("utf-8")
        proofs[each.host.name] = prove(each, text, project=plan.project)
    return proofs


def _failed(name: str, proof: Proof) -> bool:
    """Return whether a proof failed that is possible."""
    from ..adapters.coding_agents.protection.hosts import HOSTS

    return proof.state == "unknown" and not HOSTS[name].not_provable and bool(proof.version)


def proof_text(proof: Proof | None) -> Text:
    """Return the result of a proof."""
    from rich.text import Text

    if proof is None:
        return Text("not tried", style="dim")
    if proof.state == "denied":
        return Text("denied", style="green")
    if proof.state == "ran":
        return Text("NOT DENIED: the call ran", style="bold red")
    return Text(f"not proven: {printable(proof.details, keep='')}", style="yellow")


def _remove(names: Sequence[str], memory: Memory, *, project: bool, yes: bool) -> int:
    from ..adapters.coding_agents.protection.changes import delete_rules, plan_removal, unchanged_rules, undo
    from ..adapters.coding_agents.protection.hosts import HOSTS

    changes = [plan_removal(HOSTS[name], settings_path(HOSTS[name], project=project), memory) for name in names]
    needed = [change for change in changes if change.is_needed]
    is_last = not memory.files.keys() - {str(change.path) for change in changes}
    rules = unchanged_rules(memory) if is_last else {}
    if not needed and not rules:
        sys.stdout.write("There are no entries of Hookline in these settings.\n")
    else:
        diffs = [_diff(change.path, change.before, change.after) for change in needed]
        _print_diffs([*diffs, *(_diff(path, b"", None) for path in rules)])
        if not _confirmed(yes, "Remove this?"):
            return CANCELLED
    sys.stdout.write("\n")
    for change in changes:
        folders = undo(change, memory) if change.is_needed or change.written is not None else []
        if change.is_needed:
            what = "deleted" if change.after is None else "entries of Hookline removed"
            _say(f"{change.host.title}: {short_path(str(change.path))}: {what}")
        _say_removed(folders)
    for path, written in rules.items():
        folders = delete_rules(path, written, memory)
        _say(f"Rules: {short_path(str(path))}: deleted")
        _say_removed(folders)
    for name in list(memory.rules) if is_last else ():
        print_note(f"{short_path(name)} stays, because you have changed it")
        memory.put_rules(Path(name), None)
    for name, written_file in memory.files.items():
        if written_file.project and not project:
            folder = short_path(str(HOSTS[written_file.agent].project_of(Path(name))))
            print_note(f"the settings of the project {folder} remain: hookline protect --remove --project there")
    return COMPLETED


def _say_removed(folders: Sequence[str]) -> None:
    for folder in folders:
        _say(f"  the empty folder {short_path(folder)}: deleted")


def _confirmed(yes: bool, question: str) -> bool:
    """Ask the user.

    Raises:
        ProtectError: there is nobody to ask.
    """
    from ..adapters.coding_agents.protection.changes import ProtectError

    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ProtectError(
            "nothing was written: there is no terminal to ask at. Read the changes above, then add --yes"
        )
    sys.stderr.write(f"\n{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    sys.stderr.write("Nothing was written.\n")
    return False


def _diff(path: Path, before: bytes | None, after: bytes | None) -> list[str]:
    """Return the difference between two contents of a file, with its headings."""
    old, new = ([] if data is None else data.decode(errors="replace").splitlines() for data in (before, after))
    lines = [] if after is None else list(difflib.unified_diff(old, new, lineterm="", n=2))[2:]
    if before is None:
        lines = new
    what = "a new file" if before is None else "will be deleted" if after is None else "changes"
    return [f"{short_path(str(path))}: {what}", *lines]


def _print_diffs(diffs: Sequence[Sequence[str]]) -> None:
    from rich.text import Text

    styles = {"+": "green", "-": "red", "@": "dim"}
    for title, *lines in diffs:
        shown = [Text(f"\n{printable(title, keep='')}", style="bold")]
        for line in lines:
            parts = indent_overflow(f"  {printable(line.expandtabs(4), keep='')}", sys.stdout).split("\n")
            shown += [Text(part, style=styles.get(line[:1], "")) for part in parts]
        print_parts(*shown)


def _print_steps(steps: Sequence[tuple[str, str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(no_wrap=True)
    for title, step in steps:
        made.add_row(Text(title, style="bold"), Text(step))
    print_parts(Text("\nNext", style="bold"), made)


def _say(text: str) -> None:
    from rich.text import Text

    print_parts(Text(printable(text)))
