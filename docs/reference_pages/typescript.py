"""Generate the types of the TypeScript client from the questions and answers of `POST /decide`."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from hookline.server.decide.answers import Answer
from hookline.server.decide.questions import ASKED, PAYLOADS, SHOWN

BEGIN = "// Types, made from the Python classes by `make docs`."
END = "// End of the types."

_SCALARS = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null", Any: "unknown"}


def page(before: str) -> str:
    """Return the client with current types."""
    head, _, rest = before.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{_types()}\n{END}{tail}"


def _types() -> str:
    maker = Interfaces()
    sent = {point: maker.name_of(PAYLOADS[point]) for point in ASKED}
    shown = {point: maker.name_of(SHOWN[point]) for point in ASKED}
    answers = [maker.name_of(each, generic="payload") for each in get_args(Answer)]
    return "\n".join(
        (
            *maker.texts.values(),
            _mapping("The payload of a question, by point.", "Payloads", sent),
            _mapping("The payload of an answer, by point: what the hooks made of it.", "Results", shown),
            "/** The points that a program can ask about. */\nexport type Point = keyof Payloads;\n",
            "/** The answer to a question about a point. Only `allow` lets the program go on. */",
            f"export type Answer<P extends Point = Point> = {' | '.join(answers)};",
            "",
        )
    )


def _mapping(doc: str, name: str, members: Mapping[Any, str]) -> str:
    lines = "".join(f"  {point}: {kind};\n" for point, kind in members.items())
    return f"/** {doc} */\nexport interface {name} {{\n{lines}}}\n"


class Interfaces:
    """Makes an interface of each struct, and of each struct in its fields."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.kinds: dict[type[msgspec.Struct], None] = {}
        """The structs that have an interface."""

    def name_of(self, kind: type[msgspec.Struct], generic: str = "") -> str:
        """Return the name of the interface of a struct. Two structs of one name and with different fields get two."""
        parameter = "<P>" if any(each.name == generic for each in msgspec.structs.fields(kind)) else ""
        name, number = kind.__name__, 1
        while True:
            text = self._text(kind, name, generic if parameter else "")
            if self.texts.setdefault(name, text) == text:
                self.kinds[kind] = None
                return name + parameter
            number += 1
            name = f"{kind.__name__}{number}"

    def _text(self, kind: type[msgspec.Struct], name: str, generic: str) -> str:
        doc = " ".join((kind.__doc__ or "").replace("``", "`").split())
        head = f"export interface {name}{'<P extends Point>' if generic else ''}"
        return f"/** {doc} */\n{head} {{\n{''.join(self._fields(kind, generic))}}}\n"

    def _fields(self, kind: type[msgspec.Struct], generic: str) -> Iterator[str]:
        config = kind.__struct_config__
        if config.tag_field is not None:
            yield f"  {config.tag_field}: {_literal(config.tag)};\n"
        for each in msgspec.structs.fields(kind):
            optional = "" if each.required or config.tag_field == "action" else "?"
            written = self.type_of(each.type)
            if each.name == generic:
                written = "Results[P]" + (" | null" if written.endswith("| null") else "")
            yield f"  {each.encode_name}{optional}: {written};\n"

    def type_of(self, kind: Any) -> str:
        """Return a type in TypeScript."""
        origin, arguments = get_origin(kind), get_args(kind)
        if kind in _SCALARS:
            return _SCALARS[kind]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.name_of(kind)
        if origin is Annotated:
            return self.type_of(arguments[0])
        if origin is Literal:
            return " | ".join(map(_literal, arguments))
        if origin is dict:
            return f"Record<string, {self.type_of(arguments[1])}>"
        if origin is tuple:
            item = self.type_of(arguments[0])
            return f"({item})[]" if " " in item else f"{item}[]"
        if origin is Union or isinstance(kind, type(int | str)):
            return " | ".join(dict.fromkeys(map(self.type_of, arguments)))
        raise TypeError(f"{kind!r} has no form in TypeScript")


def _literal(value: object) -> str:
    return f'"{value}"'
