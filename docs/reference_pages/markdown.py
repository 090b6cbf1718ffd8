"""Markdown tables, types, signatures and texts of docstrings."""

import inspect
import re
from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

GENERATED = "This page is generated from the code (`make docs`)."


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table; an empty text without rows."""
    lines = [*rows]
    if not lines:
        return ""
    return "".join("| " + " | ".join(row) + " |\n" for row in (heads, ("---",) * len(heads), *lines))


def with_table(page: str, name: str, made: str) -> str:
    """Return the page with new text between its marks of that name."""
    before, mark, rest = page.partition(f"<!-- {name} -->\n")
    return f"{before}{mark}{made}<!-- end -->{rest.partition('<!-- end -->')[2]}"


def code(text: str) -> str:
    """Return text as inline code, also for a table cell."""
    return f"`{text}`".replace("|", "\\|")


def block(text: str, language: str = "text") -> str:
    """Return a code block."""
    return f"```{language}\n{text}\n```\n"


def cell(text: str) -> str:
    """Return text for a table cell."""
    return text.replace("|", "\\|")


def prose(text: str) -> str:
    """Convert text of a docstring to Markdown."""
    text = re.sub(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`", r"`\1`", text)
    text = text.replace("``", "`")
    return re.sub(r"\s*\(DESIGN [\d.]+\)", "", text)


def summary(value: object) -> str:
    """Return the first paragraph of a docstring as one line."""
    return prose(" ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()))


def more(value: object) -> str:
    """Return the paragraphs of a docstring after the first, without its lists of arguments and errors."""
    parts = (inspect.getdoc(value) or "").split("\n\n")[1:]
    kept = []
    for part in parts:
        if re.match(r"(Args|Raises|Yields|Returns|Example):", part):
            break
        kept.append(prose(" ".join(part.split())))
    return "\n\n".join(kept)


def listed(value: object, heading: str = "Args") -> dict[str, str]:
    """Return the entries of a docstring under ``Args`` or another heading."""
    found = re.search(rf"^{heading}:\n((?:    .*\n?|\n(?=    ))+)", inspect.getdoc(value) or "", re.M)
    items: dict[str, str] = {}
    name = ""
    for line in found[1].splitlines() if found else ():
        start = re.match(r"    (\*{0,2}\w+(?:, \w+)*): (.*)", line)
        if start:
            name = start[1]
            items[name] = start[2]
        elif name:
            items[name] += " " + line.strip()
    return {name: prose(" ".join(text.split())) for name, text in items.items()}


def type_words(kind: Any) -> str:
    """Return a type in short form."""
    if isinstance(kind, str):
        return kind.replace("v.", "")
    if kind is NoneType or kind is None:
        return "None"
    if kind is Ellipsis:
        return "..."
    if isinstance(kind, TypeVar):
        return "Any"
    if isinstance(kind, list):
        return f"[{', '.join(map(type_words, kind))}]"
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return type_words(args[0])
    if origin is Literal:
        return " | ".join(msgspec.json.encode(arg).decode() for arg in args)
    if origin in (Union, UnionType):
        return " | ".join(map(type_words, args))
    name = getattr(origin or kind, "__name__", str(kind))
    return f"{name}[{', '.join(map(type_words, args))}]" if args else name


def default_words(value: Any) -> str:
    """Return a default in short form."""
    if isinstance(value, type):
        return value.__name__
    if inspect.isroutine(value):
        return value.__name__
    if isinstance(value, msgspec.Struct):
        changed = {
            field.name: getattr(value, field.name)
            for field in msgspec.structs.fields(value)
            if getattr(value, field.name) != field.default and field.default_factory is msgspec.NODEFAULT
        }
        return f"{type(value).__name__}({', '.join(f'{name}={default_words(v)}' for name, v in changed.items())})"
    if hasattr(value, "name") and hasattr(value, "value"):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str):
        return msgspec.json.encode(value if len(value) <= 80 else f"{value[:40].rsplit(maxsplit=1)[0]} ...").decode()
    words = repr(value)
    return "..." if " object at 0x" in words or words.startswith("<") else words


def signature(value: Callable[..., Any], *, types: bool = True, own: bool = True) -> str:
    """Return the parameters of a function or class without `self`; empty if it has none."""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return ""
    if not own:
        parameters = parameters[1:]
    parts, starred = [], False
    for number, parameter in enumerate(parameters):
        if parameter.name.startswith("_"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            parts.append("*")
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        parts.append(_parameter(parameter, types))
        after = parameters[number + 1].kind if number + 1 < len(parameters) else None
        if parameter.kind is parameter.POSITIONAL_ONLY and after is not parameter.POSITIONAL_ONLY:
            parts.append("/")
    return ", ".join(parts)


_LONGEST_DEFAULT = 200
"""Length from which on a signature shows only the first items of a default: the docstring says what it is."""


def _parameter(parameter: inspect.Parameter, types: bool) -> str:
    stars = (
        "*" if parameter.kind is parameter.VAR_POSITIONAL else "**" if parameter.kind is parameter.VAR_KEYWORD else ""
    )
    typed = types and parameter.annotation is not parameter.empty
    text = stars + parameter.name + (f": {type_words(parameter.annotation)}" if typed else "")
    if parameter.default is parameter.empty:
        return text
    words = default_words(parameter.default)
    if isinstance(parameter.default, tuple) and len(words) > _LONGEST_DEFAULT:
        words = f"({', '.join(map(default_words, parameter.default[:3]))}, ...)"
    return text + (" = " if typed else "=") + words


def call(name: str, value: Callable[..., Any], *, result: bool = True) -> str:
    """Return a call with parameters and result, on one line if it fits, else with one parameter per line."""
    inside, gives = signature(value), _gives(value) if result else ""
    if len(name) + len(inside) + len(gives) < 100:
        return f"{name}({inside}){gives}"
    parts = re.split(r", (?=[*\w/]+(?::| =|,|$))(?![^\[(]*[\])])", inside)
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){gives}"


def _gives(value: Callable[..., Any]) -> str:
    if isinstance(value, type):
        return ""
    given = inspect.signature(value).return_annotation
    return "" if given in (inspect.Signature.empty, None, "None") else f" -> {type_words(given)}"
