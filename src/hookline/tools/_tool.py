"""Tools: a function, the schema that a model sees, and readable errors for invalid arguments."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import cached_property, lru_cache, partial
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Generic,
    Literal,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from .._base.attachment import Attachment
from .._base.files import matches_globs
from .._base.frozen import FrozenDict, freeze, freeze_flat, has_non_finite, json_problem, scrub, thaw
from .._base.text import describe, did_you_mean
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.values import ToolSpec
from .arguments import file_names_in, has_path_format, paths_in, url_properties, urls_in

if TYPE_CHECKING:  # with defaults, so that ``Tool`` alone means any tool; ``typing`` has them from Python 3.13 on
    from typing_extensions import ParamSpec, TypeVar

    from .._kernel.hook_types import HookContext

    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)
    Ctx = TypeVar("Ctx", bound=HookContext)
    Ctx_contra = TypeVar("Ctx_contra", contravariant=True, default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R_co = TypeVar("R_co", covariant=True)
    Ctx_contra = TypeVar("Ctx_contra", contravariant=True)

Effect = Literal["read", "write", "delete", "execute", "network"]
"""An effect of a tool outside the run: reading, writing or deleting files and other data, running code, network use."""

EFFECTS: tuple[Effect, ...] = get_args(Effect)

_NATIVE: tuple[Any, ...] = (str, int, float, bool, type(None))
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class CheckedArguments(msgspec.Struct, frozen=True):
    """Validated arguments: the JSON that guards see, and the Python values that this JSON stands for."""

    arguments: FrozenDict
    values: dict[str, Any]

    @classmethod
    def of(cls, tool: str, arguments: FrozenDict, values: dict[str, Any]) -> CheckedArguments | str:
        """Return the arguments of a tool, or a text that says why JSON cannot express them.

        A person who approves the call must see exactly what the tool gets.
        """
        problem = json_problem(arguments)
        return cls(arguments, values) if problem is None else f"Invalid arguments for {tool}: {problem}"


class Tool(Generic[P, R_co, Ctx_contra]):
    """A function that a model may call. Calling the tool calls the function, with the same signature.

    Args:
        fn: a sync function (runs in a worker thread) or an async one. A parameter named ``ctx`` gets the context. If
            it returns an iterator, the model gets a list. A generator function is refused: report progress with
            ``ctx.progress``.
        name: the name; the function's name if omitted.
        description: the description; from the docstring if omitted.
        timeout: seconds after which a call fails.
        folder: the folder to which relative paths in the arguments refer; the working directory if omitted.
        effects: what the tool may do outside the run: any of ``read``, ``write``, ``delete``, ``execute`` (which counts
            as everything that code can do) and ``network``. An empty list declares a pure computation. If omitted, the
            tool is undeclared, and guards treat it as if it did all of this.
        untrusted: whether results come from outside, such as a web page, and may contain anything. If omitted, true for
            tools that may use the network or run code.
        dangerous: whether the tool may do harm; guards may ask for approval first. If omitted, true for tools that may
            do more than read.
        texts: the parameters that hold text and never a path, such as the content of a file. Guards do not take a text
            in them for a path because it looks like one.
        repeatable: whether a durable run may call the tool again if its process ended during the call, with the same
            ``ctx.call_key``. If false, the call gets an error result that says that its outcome is unknown.
        offer: ``offer(ctx)`` returns the spec that the model sees in this step, or ``None`` to hide the tool; if
            omitted, the model always sees ``spec``.

    Example::

        def add(a: int, b: int) -> int:
            "Add two numbers."
            return a + b

        agent = Agent("bob", llm="local", tools=[Tool(add, timeout=5, effects=[])])
    """

    runs_agents = False
    """Whether the tool only runs agents.

    A replay calls such a tool, because the calls of its agents are on the tape.
    """

    sandbox = ""
    """The sandbox in which the tool runs commands, ``landlock`` or ``bubblewrap``; empty if there is none."""

    is_search = False
    """Whether the tool reads all files in a folder that it is given, and shows parts of them."""

    hides: tuple[str, ...] = ()
    """Globs of files that a search skips."""

    def __init__(
        self,
        fn: Callable[P, R_co],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        folder: str | os.PathLike[str] | None = None,
        effects: Iterable[Effect] | None = None,
        untrusted: bool | None = None,
        dangerous: bool | None = None,
        texts: Iterable[str] = (),
        repeatable: bool = True,
        offer: Callable[[Any], ToolSpec | None] | None = None,
    ) -> None:
        self.fn = fn
        self.offer = offer
        self.repeatable = repeatable
        self.name = name or str(getattr(fn, "__name__", ""))
        if not _NAME.fullmatch(self.name):
            raise RegistrationError(f"tool name {self.name!r}: use letters, digits, '_', '-' or '.', at most 64")
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
            raise RegistrationError(f"tool {self.name!r}: timeout must be a positive number of seconds")
        self.timeout = timeout
        self.effects = None if effects is None else check_effects(effects, f"tool {self.name!r}: effects")
        self.untrusted = self.may("network") if untrusted is None else untrusted
        self.dangerous = self.may("write", "delete", "network") if dangerous is None else dangerous
        self._folder = None if folder is None else os.fspath(folder)
        if _is_generator(fn) or _is_generator(getattr(fn, "__call__", None)):  # noqa: B004 - may be an object
            raise RegistrationError(
                f"tool {self.name!r} is a generator: a tool has one result, so return a list of the items, and report "
                "progress with ctx.progress(fraction, message)"
            )
        self.is_async = inspect.iscoroutinefunction(fn)
        self._params = dict(inspect.signature(fn).parameters)
        self.takes_ctx = self._params.pop("ctx", None) is not None
        for param in self._params.values():
            if param.kind in (param.VAR_POSITIONAL, param.POSITIONAL_ONLY):
                raise RegistrationError(f"tool {self.name!r}: parameter {param} cannot be given by name")
        self.texts = _checked_texts(self.name, texts, self._params)
        self._description = description
        self.__doc__ = fn.__doc__

    if not TYPE_CHECKING:

        def __class_getitem__(cls, given: Any) -> Any:
            """Complete ``Tool[[int], str]``: before Python 3.13, type variables have no defaults."""
            return super().__class_getitem__((*given, Any) if isinstance(given, tuple) and len(given) == 2 else given)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, without hooks."""
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def may(self, *effects: Effect) -> bool:
        """Return whether the tool may have one of these effects.

        A tool that is undeclared, or that runs code, may have all of them.
        """
        return self.effects is None or not self.effects.isdisjoint((*effects, "execute"))

    @cached_property
    def spec(self) -> ToolSpec:
        """Name, description and JSON schema, from signature, type hints and docstring."""
        try:
            schema = deepcopy(self._argument_checks.schema)
        except Exception as error:
            raise self._unsupported(error) from error
        for name, default in self._defaults.items():
            schema["properties"][name].setdefault("default", default)
        return ToolSpec(self.name, self._description or self._docs[0], schema)

    def _unsupported(self, error: Exception) -> RegistrationError:
        """Return the error for a parameter without a JSON schema, with the name of the first one."""
        from pydantic import TypeAdapter

        for name, hint in self._hints.items():
            try:
                TypeAdapter(hint).json_schema()
            except Exception as own:  # noqa: BLE001 - pydantic raises various errors for a missing schema
                kind = getattr(hint, "__qualname__", None) or repr(hint)
                reason = str(own).partition("\n")[0].partition(" Set `arbitrary_types_allowed")[0]
                return RegistrationError(
                    f"tool {self.name!r}: parameter {name!r} has the type {kind}, which has no JSON schema ({reason}); "
                    "use JSON types, a dataclass, a TypedDict or a pydantic model"
                )
        return RegistrationError(f"tool {self.name!r}: no JSON schema for its parameters: {error}")

    def validate(self, arguments: Mapping[str, Any]) -> CheckedArguments | str:
        """Return the arguments as JSON and as Python values, or a text that says what is wrong with them."""
        native = self._native
        if not native and (problem := json_problem(arguments)):  # as JSON, some types would replace the value
            return f"Invalid arguments for {self.name}: {problem}"
        try:
            values = self._validate(dict(arguments) if native else thaw(arguments))
            if native and len(values) == len(self._params):
                return CheckedArguments.of(self.name, freeze_flat(values), values)
            shown, values = (values, values) if native else self._as_json(values)
        except Exception as error:  # noqa: BLE001 - a validator may raise anything
            return self._explain(error, arguments)
        missing = {name: default for name, default in self._defaults.items() if name not in values}
        checked: FrozenDict = freeze({**shown, **missing})
        for name in missing:
            values[name] = deepcopy(self._params[name].default)
        return CheckedArguments.of(self.name, checked, values)

    def _as_json(self, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return values as JSON, and the values that this JSON stands for, so that guards see everything that runs."""
        shown = self._adapter.dump_python(values, mode="json", warnings=False)
        again = self._validate(thaw(shown))
        stable = self._adapter.dump_python(again, mode="json", warnings=False) == shown
        return shown, again if stable else values  # a validator with side effects must not run twice

    async def call(self, values: Mapping[str, Any], ctx: Any) -> Any:
        """Call the function with the values of :class:`CheckedArguments`, and return its result.

        An iterator is read here, once: a journal, a tape and the run all use the result.
        """
        if self.takes_ctx:
            values = {**values, "ctx": ctx}
        fn: Callable[..., Any] = self.fn
        value = await fn(**values) if self.is_async else await in_thread(_call_in_thread, fn, values)
        if type(value) in _NATIVE:  # the usual case: the checks below are slow
            return value
        if isinstance(value, AsyncIterator):
            raise TypeError("the tool returned an async generator: return a list of its items")
        return list(value) if isinstance(value, Iterator) else value

    @property
    def folder(self) -> str:
        """The folder to which relative paths in the arguments refer."""
        return os.getcwd() if self._folder is None else self._folder

    def paths(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the paths in these arguments, at any depth.

        A text is a path if it has the type of one (``Path``, ``os.PathLike``, the JSON schema format ``path``), also
        inside models, lists and the like; if its parameter has the name of one (``path``, ``out_dir``); or if it starts
        with ``file:``. If the parameter is named like a location (``source``, ``target``, ``uri``), and for keys of an
        object that is named like a path, a text is a path if it has a separator, starts with ``~`` or ``$``, or is
        ``..``.

        In a tool that may read, write or delete, a text of any other parameter is a path if it looks like one: it
        starts with ``/``, ``~/``, ``$NAME/``, ``../`` or a drive letter, or has ``/../`` in it. A text of several lines
        counts if all of them do. ``texts=`` names the parameters to which this does not apply.
        """
        touches_files = self.may("read", "write", "delete")
        return paths_in(arguments, self._path_params, self._path_schemas, touches_files, self.texts)

    def file_names(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Return the words in these arguments that may be the names of files in the folder of the tool.

        Those of parameters that are named like a location (``source``, ``target``, ``uri``); and those of all
        parameters but ``texts=``, if the tool declares to read, write or delete.
        """
        declared = self.effects is not None and not self.effects.isdisjoint(("read", "write", "delete"))
        return file_names_in(arguments, declared, self.texts)

    def may_read(self, arguments: Mapping[str, Any], path: str) -> bool:
        """Return whether a search with these arguments may read a file in the folder that it searches.

        Args:
            arguments: the arguments of a call.
            path: the full path of the file.
        """
        return not matches_globs(path, self.hides, self.folder)

    def urls(self, arguments: Mapping[str, Any], *, free: bool = True) -> Iterator[str]:
        """Return the URLs and hosts in these arguments, at any depth, as they are written.

        A text is a URL if its parameter has the type, format or name of one (``url``, ``base_url``, ``host``); if the
        name is like ``domain``, ``target`` or ``endpoint``, only if the text looks like one. In any other text each
        ``scheme://`` starts a URL, which is returned up to its host, and so does ``//host/``. A path such as ``/docs``
        names no host.

        In a tool that declares to connect, a text of any other parameter is a host if it is one word that looks like
        one: ``evil.com``, ``10.0.0.1:80``, ``localhost`` or ``evil:80``, but not ``report.pdf``, ``bob@example.com`` or
        ``1.2.3``. ``texts=`` names the parameters to which this does not apply.

        Args:
            arguments: the arguments of a call.
            free: whether to search texts of other parameters too.
        """
        connects = self.effects is not None and "network" in self.effects
        return urls_in(arguments, self._url_params, free, connects, self.texts)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        fn = self.fn.func if isinstance(self.fn, partial) else self.fn
        try:
            hints = get_type_hints(fn if inspect.isroutine(fn) else type(fn).__call__, include_extras=True)
        except NameError as error:
            raise RegistrationError(f"tool {self.name!r}: {error}; its type hints must exist at run time") from error
        found = {name: hints.get(name, Any) for name in self._params}
        return {name: hint | None if self._params[name].default is None else hint for name, hint in found.items()}

    @cached_property
    def _path_params(self) -> frozenset[str]:
        """The parameters with the type of a path, even if its JSON schema does not say so."""
        return frozenset(name for name, hint in self._hints.items() if _is_path(hint))

    @cached_property
    def _path_schemas(self) -> tuple[Any, ...]:
        """The schemas of the arguments that mention paths: with the names that models send, and that guards see."""
        schemas = [self.spec.parameters]
        if not self._native:
            schemas.append(self._adapter.json_schema(by_alias=False))
        return tuple(schema for schema in schemas if has_path_format(schema))

    @cached_property
    def _url_params(self) -> frozenset[str]:
        return frozenset(url_properties(self.spec.parameters))

    @cached_property
    def _docs(self) -> tuple[str, dict[str, str]]:
        from docstring_parser import parse

        doc = parse(inspect.getdoc(self.fn) or "")
        parts = (doc.short_description, doc.long_description)
        return "\n\n".join(p for p in parts if p), {p.arg_name: p.description or "" for p in doc.params}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """The defaults that have a JSON form; the function itself fills in the others."""
        from pydantic import TypeAdapter

        defaults: dict[str, Any] = {}
        for name, param in self._params.items():
            if param.default is not param.empty:
                with suppress(Exception):  # pydantic raises various errors for a default without a JSON form
                    hint = self._hints[name]
                    shown = freeze(TypeAdapter(hint).dump_python(param.default, mode="json", warnings="error"))
                    if json_problem(shown) is None:
                        defaults[name] = shown
        return defaults

    @cached_property
    def _native(self) -> bool:
        """Whether all arguments are JSON scalars, so that they need no conversion and no copy."""
        if any(param.kind is param.VAR_KEYWORD for param in self._params.values()):
            return False
        return all(
            all(type(arg) in _NATIVE for arg in get_args(hint)) if get_origin(hint) is Literal else hint in _NATIVE
            for hint in self._hints.values()
        )

    @cached_property
    def _argument_checks(self) -> _Checks:
        fields, others = [], None
        for name, param in self._params.items():
            if param.kind is param.VAR_KEYWORD:
                others = self._hints[name]
            else:
                fields.append((name, self._hints[name], param.default is param.empty, self._docs[1].get(name)))
        # Only with plain types: other hints may be equal but not the same, such as ``int | str`` and ``str | int``.
        are_plain = others is None and all(hint in _NATIVE for _, hint, *_ in fields)
        return (_shared_checks if are_plain else _Checks)(tuple(fields), others)

    @property
    def _adapter(self) -> Any:
        return self._argument_checks.adapter

    @cached_property
    def _validate(self) -> Callable[[Any], Any]:
        return self._adapter.validator.validate_python  # type: ignore[no-any-return]

    def _explain(self, error: Any, arguments: Mapping[str, Any]) -> str:
        if not hasattr(error, "errors"):
            return f"Invalid arguments for {self.name}: {describe(error)}"
        problems, unknown = [], []
        for item in error.errors(include_url=False, include_context=False):
            where = ".".join(str(part) for part in item["loc"])
            if item["type"] == "extra_forbidden":
                unknown.append(where)
            elif item["type"] == "missing":
                problems.append(f"{where}: field required")
            else:
                problems.append(f"{where}: {item['msg'][:1].lower()}{item['msg'][1:]}, not {item['input']!r:.80}")
        if any(problem.endswith("field required") for problem in problems):
            problems.append(f"you sent: {', '.join(arguments) or 'no arguments'}")
        elif unknown:
            problems.append(f"unknown: {', '.join(unknown)}; expected: {', '.join(self._params) or 'no arguments'}")
        return f"Invalid arguments for {self.name}: " + "; ".join(problems)


def _is_generator(fn: Any) -> bool:
    return inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)


def _call_in_thread(fn: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a sync tool. An iterator that it returns is read in the thread of the tool, because that may take long."""
    value = fn(**values)
    return list(value) if isinstance(value, Iterator) else value


def check_effects(effects: Iterable[Effect], name: str) -> frozenset[Effect]:
    """Check a list of effects; ``name`` says in error messages where it comes from.

    Raises:
        RegistrationError: it is not a list, or has an unknown effect.
    """
    if isinstance(effects, str) or not isinstance(effects, Iterable):
        raise RegistrationError(f"{name} must be a list such as ['read'], not {effects!r:.80}")
    found = tuple(effects)
    for effect in found:
        if effect not in EFFECTS:
            raise RegistrationError(
                f"{name}: there is no effect {effect!r:.80}.{did_you_mean(str(effect), EFFECTS)} "
                f"There are {', '.join(EFFECTS)}; an empty list means none of them"
            )
    return frozenset(found)


def _checked_texts(name: str, texts: Iterable[str], params: Iterable[str]) -> frozenset[str]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise RegistrationError(f"tool {name!r}: texts must be a list of parameters, not {texts!r:.80}")
    found = frozenset(texts)
    for text in found.difference(params):
        raise RegistrationError(f"tool {name!r}: texts names {text!r:.80}, which is not one of its parameters")
    return found


def _is_path(hint: Any) -> bool:
    """Return whether a type is a path. Paths inside other types are found in the JSON schema."""
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType):
        return any(map(_is_path, get_args(hint)))
    inner = getattr(hint, "__origin__", None) if origin is Annotated else getattr(hint, "__supertype__", None)
    is_path = isinstance(origin, type) and hasattr(origin, "__fspath__")  # as os.PathLike requires
    return is_path or (inner is not None and _is_path(inner))


class _Checks:
    """The checks of a tool's arguments, and their JSON schema.

    Args:
        fields: the parameters: name, type, whether the model must give it, and description.
        others: the type of arguments with other names; None if there may be none.
    """

    def __init__(self, fields: tuple[tuple[str, Any, bool, str | None], ...], others: Any) -> None:
        from typing import NotRequired, Required

        from pydantic import ConfigDict, Field, TypeAdapter
        from typing_extensions import TypedDict

        typed: dict[str, Any] = {}
        for name, hint, is_required, description in fields:
            if description and not _has_description(hint):
                hint = Annotated[hint, Field(description=description)]  # noqa: PLW2901
            typed[name] = Required[hint] if is_required else NotRequired[hint]
        make: Any = TypedDict
        arguments = make("arguments", typed) if others is None else make("arguments", typed, extra_items=others)
        arguments.__pydantic_config__ = ConfigDict(extra="forbid" if others is None else "allow")
        self.adapter: Any = TypeAdapter(arguments)

    @cached_property
    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = self.adapter.json_schema()
        _drop_titles(schema)
        return schema


# Programs make the same tools again for each agent, and a _Checks takes a millisecond.
_shared_checks = lru_cache(maxsize=1024)(_Checks)


def _has_description(hint: Any) -> bool:
    return any(getattr(extra, "description", None) for extra in getattr(hint, "__metadata__", ()))


def _drop_titles(schema: Any) -> None:
    """Remove the titles that pydantic adds to a schema; a model needs only the parameter names."""
    if isinstance(schema, dict):
        if isinstance(schema.get("title"), str):
            del schema["title"]
        for key, value in schema.items():
            if key not in ("default", "examples", "const", "enum"):
                _drop_titles(value)
    elif isinstance(schema, list):
        for value in schema:
            _drop_titles(value)


if TYPE_CHECKING:

    class ContextTool(Tool[Concatenate[Ctx_contra, P], R_co, Ctx_contra], Generic[P, R_co, Ctx_contra]):
        """A tool whose first parameter is the context, so that the context of its agent is checked.

        Calls that name all arguments are not checked: a type checker cannot keep the name of the first parameter.
        """

        @overload
        def __call__(self, ctx: Ctx_contra, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
        @overload
        def __call__(self, **kwargs: Any) -> R_co: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
            """Call the function itself, without hooks."""

    class ToolDecorator(Protocol):
        """The decorator ``@tool(...)``."""

        @overload
        def __call__(self, fn: Callable[Concatenate[Ctx, P], R_co], /) -> ContextTool[P, R_co, Ctx]: ...
        @overload
        def __call__(self, fn: Callable[P, R_co], /) -> Tool[P, R_co, object]: ...


@overload
def tool(
    fn: Callable[Concatenate[Ctx, P], R_co],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    effects: Iterable[Effect] | None = None,
    untrusted: bool | None = None,
    dangerous: bool | None = None,
    texts: Iterable[str] = (),
    repeatable: bool = True,
) -> ContextTool[P, R_co, Ctx]: ...
@overload
def tool(
    fn: Callable[P, R_co],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    effects: Iterable[Effect] | None = None,
    untrusted: bool | None = None,
    dangerous: bool | None = None,
    texts: Iterable[str] = (),
    repeatable: bool = True,
) -> Tool[P, R_co, object]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    effects: Iterable[Effect] | None = None,
    untrusted: bool | None = None,
    dangerous: bool | None = None,
    texts: Iterable[str] = (),
    repeatable: bool = True,
) -> ToolDecorator: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    effects: Iterable[Effect] | None = None,
    untrusted: bool | None = None,
    dangerous: bool | None = None,
    texts: Iterable[str] = (),
    repeatable: bool = True,
) -> Any:
    """Make a function a tool: ``@tool``, or ``@tool(timeout=...)`` with the options of :class:`Tool`.

    For type checkers the tool keeps the function's signature: it can be called as before, in a test for example.

    Example::

        @tool(effects=["network"], timeout=10)
        def send(to: str, text: str) -> str:
            "Send a message."
            return f"sent to {to}"
    """

    def made(function: Callable[..., Any]) -> Tool:
        return Tool(
            function,
            name=name,
            description=description,
            timeout=timeout,
            folder=folder,
            effects=effects,
            untrusted=untrusted,
            dangerous=dangerous,
            texts=texts,
            repeatable=repeatable,
        )

    return made if fn is None else made(fn)


class WithAttachments(msgspec.Struct, frozen=True):
    """The result of a tool, split into its JSON and its attachments, as a replay returns it."""

    value: Any
    attachments: tuple[Attachment, ...]


def take_attachments(value: Any) -> tuple[Any, tuple[Attachment, ...]]:
    """Split the result of a tool into its own value and the attachments in it.

    A tool may return an attachment, a list of texts and attachments, or a dict with attachments as values. The value
    names the attachments, for guards that read it and for models that do not take them.
    """
    if isinstance(value, (list, tuple)):
        found = tuple(each for each in value if isinstance(each, Attachment))
        if not found:
            return value, ()
        rest = [each for each in value if not isinstance(each, Attachment)]
        if all(isinstance(each, str) for each in rest):
            return "\n".join([*rest, _names_of(found)]), found
        return [*rest, _names_of(found)], found
    if isinstance(value, Attachment):
        return _names_of((value,)), (value,)
    if isinstance(value, WithAttachments):
        return value.value, value.attachments
    if isinstance(value, dict):
        found = tuple(each for each in value.values() if isinstance(each, Attachment))
        if found:
            return {key: str(each) if isinstance(each, Attachment) else each for key, each in value.items()}, found
    return value, ()


def _names_of(attachments: tuple[Attachment, ...]) -> str:
    return f"Attached: {', '.join(map(str, attachments))}"


def jsonable(value: Any) -> Any:
    """Convert any result of a tool to JSON that can be encoded. Infinity and NaN become their names."""
    if type(value) is not str:
        try:
            value = freeze(value)
        except (TypeError, ValueError):
            value = _converted(value)
    if type(value) is str:
        return value if value.isascii() else scrub(value)
    return freeze(scrub(value)) if has_non_finite(value) else value


def _converted(value: Any) -> Any:
    from pydantic_core import to_jsonable_python

    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode(errors="replace")
    try:
        return freeze(to_jsonable_python(value, fallback=str))
    except (TypeError, ValueError):
        return str(value)
