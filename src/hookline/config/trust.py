"""Trust on first use: a configuration file and the code that it loads are used after the user has trusted them once.

Trust is recorded by path and content, so the user is asked again after a change. The files are found without executing
anything: the files that the settings name, and the modules that they import, as far as these belong to the project.
"""

from __future__ import annotations

import ast
import glob
import importlib
import itertools
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from .._base.files import distrust_reason, locked, replace_file, user_folder
from .._base.text import error_text
from ..plugins.discovery import find_plugins, is_path
from ..plugins.manifest import MANIFEST
from ..plugins.trust import TrustedFiles, belongs_to, digest, find_module, is_installed
from .errors import ConfigError
from .settings import DeclaredChannel, DeclaredHook
from .sources import SHARED_FILE, Configuration, parse_reference, read_file

CODE_SUFFIXES = (".py", ".pyc", ".so", ".pyd")
SCRIPT_SUFFIXES = (*CODE_SUFFIXES, ".sh", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".php", ".lua", ".jar")
SCRIPTS_OF_NODE = (".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx")
LOCK_SECONDS = 10.0

State = Literal["trusted", "new", "changed"]


def trust_variable(env: Mapping[str, str]) -> bool:
    """Return whether ``HOOKLINE_TRUST`` says to use the configuration of this folder without asking.

    Raises:
        ConfigError: the variable is neither true nor false.
    """
    text = env.get("HOOKLINE_TRUST", "").strip().lower()
    if text not in ("", "0", "false", "no", "1", "true", "yes"):
        raise ConfigError(f"HOOKLINE_TRUST: expected 1 or 0; got {text!r:.80}")
    return text in ("1", "true", "yes")


class TrustRecord(msgspec.Struct, frozen=True):
    """The files that were trusted together, by their digests, and when."""

    files: dict[str, str]
    at: float


class _Document(msgspec.Struct, frozen=True):
    trusted: dict[str, TrustRecord] = {}
    version: int = 1


class TrustStore:
    """The trusted files of this user, in ``trust.json`` in the data folder. Only the user can read the file.

    Each record belongs to a configuration file, or to a single file of code.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = user_folder("data") / "trust.json" if path is None else path
        self._seen: tuple[int, ...] | None = None
        self._records: dict[str, TrustRecord] = {}

    def records(self) -> dict[str, TrustRecord]:
        """Return all records, by the path of the file that was trusted with its code.

        Raises:
            ConfigError: the file cannot be read, or others could have written it.
        """
        try:
            state = self.path.stat()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error_text(error)}") from error
        stamp = (state.st_mtime_ns, state.st_ino, state.st_size)
        if stamp != self._seen:
            if problem := distrust_reason(self.path):
                raise ConfigError(f"{self.path} is not used: {problem}. Remove it, and trust your files again")
            try:
                self._records = msgspec.json.decode(self.path.read_bytes(), type=_Document).trusted
            except (OSError, msgspec.DecodeError) as error:
                why = error_text(error)
                raise ConfigError(
                    f"{self.path} cannot be read: {why}. Remove it, and trust your files again"
                ) from error
            self._seen = stamp
        return dict(self._records)

    def state(self, path: Path, content: str) -> State:
        """Return whether a file with this digest is trusted; ``changed`` if it was trusted with another content."""
        known = [record.files[str(path)] for record in self.records().values() if str(path) in record.files]
        return "trusted" if content in known else "changed" if known else "new"

    def is_trusted(self, path: Path, content: str) -> bool:
        """Return whether a file with this digest is trusted."""
        return self.state(path, content) == "trusted"

    def trust(self, path: Path, files: Mapping[Path, str]) -> None:
        """Trust a file together with the code that it loads, each with its digest. This replaces an older record.

        Raises:
            ConfigError: the store cannot be written.
        """
        record = TrustRecord({str(file): content for file, content in files.items()}, time.time())
        self._change(lambda records: {**records, str(path): record})

    def revoke(self, path: Path) -> bool:
        """Forget a file and the code that was trusted with it. Return false if it was not trusted.

        Raises:
            ConfigError: the store cannot be written.
        """
        if str(path) not in self.records():
            return False
        self._change(lambda records: {name: record for name, record in records.items() if name != str(path)})
        return True

    def _change(self, change: Any) -> None:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                with locked(lock, LOCK_SECONDS):
                    document = _Document(change(self.records()))
                    data = msgspec.json.format(msgspec.json.encode(document, order="deterministic"))
                    replace_file(self.path, data, 0o600)
            finally:
                os.close(lock)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error_text(error)}") from error


class ProjectFiles(msgspec.Struct, frozen=True):
    """The files that a configuration file makes Hookline use.

    ``direct`` are those that the settings name; ``folders`` are the folders of the project, in which imported modules
    need trust too; ``named`` are files and folders that the user named on the command line or in the environment.
    """

    direct: tuple[Path, ...]
    folders: tuple[Path, ...]
    named: tuple[Path, ...] = ()

    def all(self) -> list[Path]:
        """Return the direct files and the modules that they import, as far as these belong to the project."""
        return list(with_imports(self.direct, self.folders))


def project_files(config: Configuration, more: Iterable[Path] = (), references: Iterable[str] = ()) -> ProjectFiles:
    """Return the files that the configuration file names, without its own path. Nothing is executed.

    Args:
        config: the configuration.
        more: further files that belong to it, such as those of personalities.
        references: further references to code in these files.
    """
    home, declared = config.home.resolve(), config.declared
    texts = [*_references(declared), *references]
    files = [*more, *_reference_files(texts, home)]
    servers = (*declared.get("mcp", ()), *declared.get("trusted_mcp", ()))
    # A server is another program, whose imports are not checked again. So its modules are searched every time.
    files += with_imports(command_scripts(servers, home), (home, Path.cwd()))
    files += _plugin_files(config, declared.get("plugins", ()))
    given = config.settings
    own = [use for use in _references(msgspec.structs.asdict(given)) if use not in texts]
    named = [*reference_files(own, home), *command_scripts({*given.mcp, *given.trusted_mcp}.difference(servers), home)]
    named += [file.parent for file in _plugin_files(config, set(given.plugins) - set(declared.get("plugins", ())))]
    if given.personalities and given.personalities != declared.get("personalities"):
        named.append(Path(given.personalities))
    direct = tuple(dict.fromkeys(path.resolve() for path in files if os.path.isfile(path)))
    direct = tuple(path for path in direct if not is_installed(path))
    folders = dict.fromkeys((home, Path.cwd(), *(path.parent for path in direct if path.suffix in CODE_SUFFIXES)))
    return ProjectFiles(direct, tuple(folders), tuple(named))


def reference_files(texts: Iterable[str], home: Path) -> list[Path]:
    """Return the files of references such as ``rules.py:keep``, with the modules of the project that they import."""
    return list(with_imports(_reference_files(texts, home), (home, Path.cwd())))


def command_scripts(targets: Iterable[str], home: Path) -> list[Path]:
    """Return the files of the project that decide what commands run.

    These are scripts, modules after ``-m``, the files that a program such as ``make`` or ``npm`` reads in its folder,
    and the scripts in the commands of these files.
    """
    return list(_search(targets, home)[0])


def commands_with_variables(targets: Iterable[str], home: Path) -> list[str]:
    """Return the commands that run, or include, files whose names are in variables: these files are not found."""
    return [command for command, _ in _search(targets, home)[1] if _VARIABLE.search(command)]


def _search(targets: Iterable[str], home: Path) -> tuple[dict[Path, None], dict[tuple[str, Path], None]]:
    """Return the files that decide what commands run, and the commands in them, each with the folder of its file."""
    found: dict[Path, None] = {}
    commands = dict.fromkeys((target, Path.cwd()) for target in targets)
    for target, folder in itertools.islice(_growing(commands), MAX_COMMANDS):
        files, makefiles = _files_of_command(target, folder)
        for path in (*files, *makefiles):
            if path not in found and belongs_to(path, (home, Path.cwd())):
                found[path] = None
                commands |= dict.fromkeys((command, path.parent) for command in _commands_in(path, path in makefiles))
    return found, commands


def other_programs(targets: Iterable[str], home: Path) -> list[str]:
    """Return the programs in commands that may run more than :func:`command_scripts` finds."""
    found: dict[str, None] = {}
    for words in (_words(target) for target in targets if "://" not in target):
        program = next((word for word in words if "=" not in word and os.path.basename(word) != "env"), "")
        name = os.path.basename(program)
        if name and not _COVERED.fullmatch(name) and not os.path.isfile(home / program):
            found[name] = None
    return list(found)


def _growing(items: Mapping[tuple[str, Path], None]) -> Iterator[tuple[str, Path]]:
    """Yield the keys of a mapping, and those that are added meanwhile."""
    done: set[tuple[str, Path]] = set()
    while new := [item for item in items if item not in done]:
        done.update(new)
        yield from new


def _words(command: str) -> list[str]:
    """Return the words of a command line, and what separates commands as words of its own."""
    text = _MAKE_VARIABLE.sub(r"${\1}", command)
    words = shlex.shlex(text, posix=True, punctuation_chars="();<>|&`")
    words.whitespace_split, words.commenters = True, ""
    try:
        return list(words)
    except ValueError:  # starting the server reports it
        return text.split()


def _files_of_command(target: str, home: Path) -> tuple[list[Path], list[Path]]:
    """Return the files that decide what a command line in a file of a folder runs, and the makefiles that it names."""
    found: list[Path] = []
    makefiles: list[Path] = []
    waiting = [_words(target)]
    bases = tuple(dict.fromkeys((Path.cwd(), home)))
    named: dict[Path, None] = {}
    for words in waiting:
        waiting += [_words(word) for word in words if len(word.split()) > 1]  # sh -c 'node server.js'
        command: list[str] = []
        after = ""
        for word in [*words, ";"]:
            if not _SEPARATOR.fullmatch(word):
                command += [] if ">" in after else _flag_and_value(word)
            elif command:
                # A script may be named from another folder: env PYTHONPATH=lib python -m server, cd lib && sh run
                places = [part for each in command for part in _places_in(each)]
                named |= dict.fromkeys(base / part for base in bases for part in places if os.path.isdir(base / part))
                files, others = _files_of(command, bases, list(named))
                found, makefiles, command = found + files, makefiles + others, []
            after = word
    return found, makefiles


def _places_in(word: str) -> list[str]:
    """Return the folders that a word of a command may name. An empty one in ``PYTHONPATH`` is the working folder."""
    name, _, value = word.rpartition("=")
    places = value.split(os.pathsep)
    return [part or "." for part in places if part or (name == "PYTHONPATH" and len(places) > 1)]


def _files_of(words: Sequence[str], bases: Sequence[Path], named: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files that decide what a single command runs, and the makefiles that it names.

    Args:
        words: the command.
        bases: the folders in which it may run.
        named: the folders that it names.
    """
    makefiles: list[Path] = []
    folders = list(dict.fromkeys((*bases, *named)))
    found = [folder / name for folder in named for name in _STARTUP_FILES]
    before, flag = "", ""
    for number, word in enumerate(words):  # data that a server gets as an argument is not code
        runs = _INTERPRETER.fullmatch(os.path.basename(before)) or flag in (*_LOADERS, *_FILE_VARIABLES)
        runs = runs or (before == "." and all("=" in each for each in words[: number - 1]))
        is_code = number == 0 or word.endswith(SCRIPT_SUFFIXES) or runs
        of_node = os.path.basename(before) in _NODE or flag in _LOADERS
        for path in (
            folder / f"{word}{ending}" for folder in folders for ending in (_NODE_ENDINGS if of_node else ("",))
        ):
            if os.path.isfile(path) and (is_code or os.access(path, os.X_OK)):
                found += [path, *_shadows(path.resolve().parent)]
            elif runs and os.path.isfile(path / "__main__.py"):
                found.append(path / "__main__.py")
        for pattern in _INSTRUCTIONS.get(os.path.basename(word), ()):
            found += [path for folder in folders for path in sorted(folder.glob(pattern)) if path.is_file()]
        before = before if word.startswith("-") or flag in (*_LOADERS, *_FILE_VARIABLES, *_VALUE_FLAGS) else word
        flag = word
    for mark, name in pairwise(words):
        if mark == "-m":
            found += _find_module_files(f"{name}.__main__", folders)
            found += [file for folder in folders for file in _shadows(folder)]
        elif mark in ("-f", "--file", "--makefile"):
            makefiles += [path for path in (folder / name for folder in folders) if os.path.isfile(path)]
    if words[0] in ("include", "sinclude"):  # a glob includes new files too
        matches = [glob.glob(str(base / name)) for name in words[1:] for base in bases]
        makefiles += [Path(path) for paths in matches for path in sorted(paths) if os.path.isfile(path)]
    return [path for path in found if os.path.isfile(path)], makefiles


def _flag_and_value(word: str) -> tuple[str, ...]:
    """Split an option that names a file or folder in the same word: ``--import=./a.mjs``, ``-r./a.js``, ``-fa.mk``."""
    flag, equals, value = word.partition("=")
    if equals and flag in (*_FILE_VARIABLES, *_LOADERS, *_FOLDER_FLAGS, "--file", "--makefile"):
        return flag, value
    return (word[:2], word[2:]) if len(word) > 2 and word[:2] in ("-r", "-f", "-C") else (word,)


def _commands_in(path: Path, is_makefile: bool) -> list[str]:
    """Return the commands in a script or a file of recipes."""
    try:
        if path.name in ("package.json", "deno.json", "composer.json"):
            document = msgspec.json.decode(path.read_bytes(), type=_Package)
            values = [*document.scripts.values(), *document.tasks.values()]
            values += [f"node {name}" for name in (document.main, *_texts([document.imports, document.bin]))]
            values += [] if "start" in document.scripts else ["node server.js"]  # what npm start runs then
            return [value for value in values if isinstance(value, str)]
        if is_makefile or path.suffix in ("", ".sh", ".mk") or path.name.lower() in _RECIPES:
            with open(path, "rb") as file:
                text = file.read(_MAX_SCRIPT).decode("utf-8", "replace")
            lines = text.replace("\\\n", " ").splitlines() if "\0" not in text else []
            return [line.strip(" \t@-") for line in lines if line.strip()]
    except (OSError, msgspec.DecodeError):  # starting the server reports it
        pass
    return []


class _Package(msgspec.Struct):
    scripts: dict[str, Any] = {}
    tasks: dict[str, Any] = {}
    main: Any = "index.js"
    imports: Any = None
    bin: Any = None


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


MAX_COMMANDS = 2000
"""Maximum number of commands in which files are searched."""
_MAX_SCRIPT = 1_000_000
_INTERPRETER = re.compile(r"(ba|da|k|z)?sh|source|python[\d.]*|node|deno|bun|ruby|perl|php|lua")
_SEPARATOR = re.compile(r"[();<>|&`]+|[{}!]|then|do|else|elif|if|while|until|builtin|command")
_MAKE_VARIABLE = re.compile(r"\$\((\w+)\)")
_VALUE_FLAGS = ("-o", "-O", "-W", "-X")
"""Options of shells and Python that have a value, which is not the script."""
_STARTUP_FILES = [f"{n}customize{end}" for n in ("site", "user") for end in (".py", ".pyc", "/__init__.py")]
"""What Python imports first from a folder in ``PYTHONPATH``."""
_FILE_VARIABLES = ("BASH_ENV", "ENV")
"""Variables that name a script which a shell runs first."""
_NODE = frozenset(("node", "deno", "bun", "tsx", "ts-node"))
_NODE_ENDINGS = ("", *SCRIPTS_OF_NODE, ".json", "/index.js", "/package.json")
_LOADERS = (
    "--rcfile",
    "--init-file",
    "--import",
    "--require",
    "-r",
    "--loader",
    "--experimental-loader",
    "--preload",
    "--env-file",
)
_FOLDER_FLAGS = ("--prefix", "--directory", "--dir", "--cwd", "-C")
_VARIABLE = re.compile(
    r"(?:^|[\s;&|])(?:s?include|(?:\S*/)?(?:(?:ba|da|k|z)?sh|python[\d.]*|node|deno|bun|tsx|ruby|perl|php|lua|make)|"
    r"\$[({]MAKE[)}]|cd|source|\.|exec)\s[^;&|]*\$(?![({]MAKE[)}])[\w({]|^(?:\./)?\$(?![({]MAKE[)}])[\w({]"
)
"""A command whose script, makefile or folder may be named by a variable."""
_COVERED = re.compile(r"(ba|da|k|z)?sh|python[\d.]*")
_RECIPES = frozenset(("makefile", "gnumakefile", "justfile", ".justfile", "procfile"))
_NODE_FILES = (
    *("package.json", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", "pnpm-workspace.yaml", "bunfig.toml"),
    *("package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock"),
)
_PYTHON = ("pyproject.toml", "uv.toml", "uv.lock", "poetry.lock", "Pipfile", "Pipfile.lock", "setup.py", "setup.cfg")
_MAKE = ("[Mm]akefile", "GNUmakefile", "*.mk")
_COMPOSE = ("compose.y*ml", "docker-compose*.y*ml", "compose.*.y*ml", "Dockerfile*")
_INSTRUCTIONS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("make", "gmake", "${MAKE}"), _MAKE),
    **dict.fromkeys(("npm", "npx", "pnpm", "pnpx", "yarn", "bun", "bunx", "node", "tsx", "ts-node"), _NODE_FILES),
    **dict.fromkeys(("uv", "uvx", "pipx", "poetry", "hatch", "pdm", "pipenv"), _PYTHON),
    **dict.fromkeys(("docker", "docker-compose", "podman"), _COMPOSE),
    "deno": ("deno.json", "deno.jsonc", "deno.lock", "package.json"),
    "just": ("[Jj]ustfile", ".justfile", "*.just"),
    "task": ("[Tt]askfile*.y*ml",),
    "cargo": ("Cargo.toml", "Cargo.lock", "build.rs", "src/*.rs", ".cargo/config*"),
    "go": ("go.mod", "go.sum", "go.work", "*.go"),
    "composer": ("composer.json", "composer.lock"),
    "rake": ("[Rr]akefile", "Gemfile*"),
    "bundle": ("Gemfile*",),
}
"""The files in its folder that tell a program what to run, as globs."""


def _shadows(folder: Path) -> Iterator[Path]:
    """Yield the modules of a folder that hide another module of the same name from a server that runs there."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        is_package = (entry / "__init__.py").is_file()
        if is_package or entry.suffix in CODE_SUFFIXES:
            other = _find(entry.name.partition(".")[0], None, ())
            if other is not None and not Path(other.origin or "").is_relative_to(folder):
                yield from _code_below(entry) if is_package else (entry,)


def code_files(path: Path) -> ProjectFiles:
    """Return a single file of code as a project of its own, for a module that the settings do not name."""
    return ProjectFiles((path.resolve(),), (path.resolve().parent, Path.cwd()))


def file_digest(path: Path, *, as_settings: bool = False) -> str:
    """Return the digest of a file; with ``as_settings``, that of its settings for a ``pyproject.toml``.

    Raises:
        ConfigError: the file cannot be read.
    """
    if as_settings and path.name == SHARED_FILE:
        return read_file(path)[1]
    try:
        return digest(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error_text(error)}") from error


class TrustCheck(msgspec.Struct, frozen=True):
    """The files that a configuration needs, each with its digest and its state; ``path`` is the file itself."""

    path: Path
    digests: dict[Path, str]
    states: dict[Path, State]

    @property
    def passed(self) -> bool:
        """Whether all files are trusted."""
        return all(state == "trusted" for state in self.states.values())


def check_trust(store: TrustStore, path: Path, content: str, files: ProjectFiles) -> TrustCheck:
    """Compare a file and the code that it loads with the trusted contents.

    Imports are analysed only if something has changed: new imports need a changed file, and the import system checks
    each module again when it is loaded.

    Args:
        store: the trusted files.
        path: the configuration file, or a file of code.
        content: its digest.
        files: the files that it makes Hookline use.
    """
    record = store.records().get(str(path))
    known = [Path(name) for name in record.files if name != str(path)] if record is not None else []
    quick = _compare(store, path, content, dict.fromkeys((*files.direct, *filter(Path.is_file, known))))
    if quick.passed and record is not None:
        return quick
    return _compare(store, path, content, files.all())


def _compare(store: TrustStore, path: Path, content: str, files: Iterable[Path]) -> TrustCheck:
    digests = {path: content, **{file: file_digest(file) for file in files if file != path}}
    return TrustCheck(path, digests, {file: store.state(file, seen) for file, seen in digests.items()})


def trusted_files(store: TrustStore, files: ProjectFiles) -> TrustedFiles:
    """Return the rule for the import system: in the folders of the project, only trusted files are loaded."""
    return TrustedFiles(files.folders, store.is_trusted, files.named)


def _references(settings: Mapping[str, Any]) -> list[str]:
    """Return the references to code in settings, such as ``rules.py:keep``."""
    items = [item for name in ("hooks", "tools", "channels") for item in settings.get(name, ())]
    items += [settings["deps"]] if settings.get("deps") else []
    rules = settings.get("server", {}).get("rules", ())  # the table is checked later, when the server is built
    items += [item for item in rules if isinstance(item, str)] if isinstance(rules, (list, tuple)) else []
    return [item.use if isinstance(item, (DeclaredHook, DeclaredChannel)) else item for item in items]


def _reference_files(texts: Iterable[str], home: Path) -> Iterator[Path]:
    for reference in map(parse_reference, texts):
        if reference.is_data:  # rules can only forbid or ask (DESIGN 6.21)
            continue
        if reference.file is not None:
            if os.path.isfile(reference.file):  # false for a name that is too long, and for a cycle of links
                yield reference.file
        elif reference.name:
            yield from _find_module_files(reference.module, (home, Path.cwd()))


def _plugin_files(config: Configuration, names: Iterable[str]) -> Iterator[Path]:
    """Yield the manifests and code of these plugins, except those of installed packages."""
    names = set(names)
    if not names:
        return
    folder = config.home / config.settings.plugins_folder
    for found in find_plugins(
        folder, [name for name in names if is_path(name) and os.path.isdir(name)], installed=False
    ):
        if found.folder is not None and (found.source == "named" or found.id in names):
            yield from filter(os.path.isfile, plugin_files(found.folder))


def plugin_files(folder: Path) -> Iterator[Path]:
    """Yield the manifest and the code in the folder of a plugin."""
    yield folder / MANIFEST
    yield from _code_below(folder)


def _code_below(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.suffix in CODE_SUFFIXES and "__pycache__" not in path.parts and path.is_file():
            yield path


def with_imports(files: Iterable[Path], folders: tuple[Path, ...]) -> dict[Path, None]:
    """Return files and the modules that they import, directly or not, as far as these are in the folders."""
    importlib.invalidate_caches()
    found: dict[Path, None] = {}
    todo = [path.resolve() for path in files]
    while todo:
        path = todo.pop(0)
        if path in found or not path.is_file():
            continue
        found[path] = None
        if path.suffix not in (".py", *SCRIPTS_OF_NODE) and path.stat().st_size > _MAX_SCRIPT:
            continue  # too long for a script without a suffix
        if path.suffix in (*SCRIPTS_OF_NODE, ""):
            todo += [each.resolve() for each in _node_imports(path) if belongs_to(each, folders)]
        if path.suffix in SCRIPTS_OF_NODE:
            continue
        search = dict.fromkeys((path.parent, path.parents[len(_package_of(path))], *folders))
        for name in _imported_names(path):
            for each in _find_module_files(name, search):
                if belongs_to(each, folders):
                    todo.append(each.resolve())
    return found


def _node_imports(path: Path) -> Iterator[Path]:
    """Yield the files that a script of Node.js imports by their path."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:  # starting the server reports it
        return
    for name in _NODE_IMPORT.findall(text):
        target = path.parent / name
        yield from (each for each in (Path(f"{target}{ending}") for ending in _NODE_ENDINGS) if os.path.isfile(each))


_NODE_IMPORT = re.compile(r"""\b(?:from|import|require|fork|Worker)\b\s*\(?\s*["'`](\.{1,2}/[^"'`\n]{1,500})["'`]""")


def _imported_names(path: Path) -> set[str]:
    """Return the full names of the modules that a file imports or may import, in functions and branches too."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # loading it reports the error
        return set()
    package = _package_of(path)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join((*base, *filter(None, (node.module,))))
            names.update(f"{start}.{alias.name}".strip(".") for alias in node.names)
    return names


def _package_of(path: Path) -> list[str]:
    """Return the names of the packages that contain a module; none if there is no ``__init__.py``."""
    names: list[str] = []
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return names


def _find_module_files(name: str, search: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that importing a module would execute: its packages and itself, as far as they exist.

    All code of a package counts, because packages often load their modules dynamically.
    """
    places: list[str] | None = None
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:number]), places, search)
        if spec is None:
            return
        if spec.has_location and spec.origin:
            yield Path(spec.origin)
        if spec.submodule_search_locations is None:
            return
        places = list(spec.submodule_search_locations)
        if number == 1 and spec.has_location:
            for place in places:
                if not is_installed(Path(place).resolve()):
                    yield from _code_below(Path(place))


def _find(name: str, places: list[str] | None, search: Iterable[Path]) -> Any:
    """Find a module as Hookline imports it: as usual, then in the folders of the project."""
    from importlib.machinery import PathFinder

    try:
        spec = find_module(name, places)
        if spec is None and places is None:
            spec = PathFinder.find_spec(name, [str(folder) for folder in search])
    except (ImportError, ValueError, OSError):
        return None
    return spec
