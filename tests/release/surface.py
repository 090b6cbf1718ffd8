"""What a version promises to those who use it: things, each with its parts.

A thing is a public module (parts: its names), a public name (parts: its parameters), a member of a public class, a
point, a payload, an event, a command and so on. ``python tests/release/surface.py`` adds to ``surface.txt`` what is new
and takes nothing away; with ``--rewrite`` it also takes away what is gone, which the changelog then lists.
"""

import inspect
import sys
from importlib import import_module
from pathlib import Path

import msgspec

import hookline
from hookline import Event
from hookline.cli.app import make_app
from hookline.cli.errors import EXIT_CODES
from hookline.config.settings import KEYS
from hookline.hooks._catalog import BUILTINS
from hookline.payloads import Frozen
from hookline.points import POINTS
from hookline.server import ServerOptions

CATCH_ALL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
PROMISED = Path(__file__).parent / "surface.txt"


def public_modules():
    """The public modules by name, ``hookline`` first: those with a stub, and those that list their names themselves."""
    package = Path(hookline.__file__).parent
    stubs = [stub.parent.name for stub in package.glob("*/__init__.pyi")]
    stubs += [f"adapters.{stub.parent.name}" for stub in package.glob("adapters/*/__init__.pyi")]
    stubs += [f"adapters.{module.stem}" for module in package.glob("adapters/[a-z]*.py")]
    stubs += [stub.stem for stub in package.glob("*.pyi") if stub.stem != "__init__"]
    names = [f"hookline.{name}" for name in sorted((*stubs, "testing", "compat"))]
    return {name: import_module(name) for name in ("hookline", *names)}


def surface():
    """Everything that holds now."""
    now = {"built-in hooks": set(BUILTINS), "settings": set(KEYS), "exit codes": {str(code) for code in EXIT_CODES}}
    now["settings of the server"] = set(ServerOptions.__struct_fields__)
    for path, module in public_modules().items():
        now[f"module {path}"] = set(module.__all__)
        for name in module.__all__ if path != "hookline" else ():  # each name of the root has its lines in its module
            now |= _of(f"{path}.{name}", getattr(module, name))
    for point in POINTS.values():
        now[f"point {point}"] = set(point.verbs)
        now[f"names of {point}"] = {alias.replace(" ", "-") for alias in point.names.values()}
        now[f"payload of {point}"] = set(point.payload.__struct_fields__)
    events = import_module("hookline.events")
    for event in filter(_is_event, (getattr(events, name) for name in events.__all__)):
        now[f"event {msgspec.inspect.type_info(event).tag}"] = set(event.__struct_fields__)
    return now | _commands("hookline", make_app())


def _is_event(value):
    return inspect.isclass(value) and issubclass(value, Event) and value is not Event


def _of(name, value):
    found = {name: _parameters(value)}
    if inspect.isclass(value):
        for each in _members(value):
            found[f"{name}.{each}"] = _parameters(inspect.getattr_static(value, each))
    return found


def _parameters(value):
    if not callable(value):
        return set()
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {each.name for each in found if each.kind not in CATCH_ALL and each.name != "self" and each.name[0] != "_"}


def _members(kind):
    """What a class has beyond the public classes it is made of, which stand for themselves."""
    known = {Frozen, Event} - {kind}
    own = [base for base in kind.__mro__ if base.__module__.startswith("hookline") and base not in known]
    return sorted({name for base in own for name in vars(base) if name[0] != "_"})


def _commands(name, command):
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    found = {f"command {name}": {flag for each in options for flag in (*each.opts, *each.secondary_opts)}}
    for sub, below in getattr(command, "commands", {}).items():
        found |= _commands(f"{name} {sub}", below)
    return found


def promised():
    """Everything that was promised."""
    lines = (line.partition(": ") for line in PROMISED.read_text().splitlines())
    return {thing.rstrip(":"): set(parts.split()) for thing, _, parts in lines}


if __name__ == "__main__":
    both = {} if "--rewrite" in sys.argv else promised()
    for thing, parts in surface().items():
        both[thing] = both.get(thing, set()) | parts
    text = "".join(f"{thing}: {' '.join(sorted(parts))}".rstrip() + "\n" for thing, parts in sorted(both.items()))
    PROMISED.write_text(text)
