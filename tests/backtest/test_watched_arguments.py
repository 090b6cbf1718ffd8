"""Watched arguments note everything that is read of them, and look like any others."""

import copy
import json
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter

import msgspec
import pytest

from hookline._base.frozen import FrozenDict, freeze, thaw
from hookline.backtest.watched_arguments import noting, watch
from hookline.payloads import ToolCallRequest
from tests.cases import each_case

ARGUMENTS = {"path": "a.txt", "mode": "w", "options": {"force": True, "tags": ["x"]}}


def matched(arguments):
    match arguments:
        case {"path": str(path)}:
            return path


def matched_rest(arguments):
    match arguments:
        case {"path": str(path), **rest}:
            return path, rest


def called(arguments):
    return (lambda **given: given)(**arguments)


def request(arguments):
    return ToolCallRequest("1", "write", arguments)


BY_NAME = {
    "[]": lambda a: a["path"],
    "get": lambda a: a.get("path"),
    "get, default": lambda a: a.get("path", 3),
    "in": lambda a: "path" in a,
    "not in": lambda a: "path" not in a,
    "itemgetter": itemgetter("path"),
    "match": matched,
    "format": "{path}".format_map,
    "percent": lambda a: "%(path)s" % a,  # noqa: UP031
    "nothing": lambda a: a.get("missing"),
}
WHOLE = {
    "iteration": list,
    "keys": lambda a: list(a.keys()),
    "values": lambda a: list(a.values()),
    "items": lambda a: list(a.items()),
    "reversed": lambda a: list(reversed(a)),
    "sorted": sorted,
    "dict()": dict,
    "**": lambda a: {**a},
    "** in a call": called,
    "|": lambda a: a | {},
    "| on the right": lambda a: {} | a,
    "update": lambda a: {"x": 1}.update(a) or 0,
    "==": lambda a: a == ARGUMENTS,
    "== on the right": lambda a: ARGUMENTS == a,  # noqa: SIM300
    "!=": lambda a: a != {},
    "str": str,
    "repr": repr,
    "format": lambda a: f"{a}",
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "copy()": lambda a: a.copy(),
    "pickle": pickle.dumps,
    "json": json.dumps,
    "json, sorted": lambda a: json.dumps(a, sort_keys=True, indent=1),
    "thaw": thaw,
    "freeze": freeze,
    "match with the rest": matched_rest,
    "unpacking": lambda a: [*a],
    "any": lambda a: any(value == 3 for value in a.values()),
    "msgspec": msgspec.json.encode,
    "msgspec, the request": lambda a: msgspec.json.encode(request(a)),
    "msgspec, an encoder": lambda a: msgspec.json.Encoder().encode(a),
    "builtins": msgspec.to_builtins,
    "dict.get": lambda a: dict.get(a, "path"),
    "dict.__getitem__": lambda a: dict.__getitem__(a, "path"),
    "dict.items": lambda a: list(dict.items(a)),
    "eval": lambda a: eval("path", {}, a),  # noqa: S307
    "the digest of the call": lambda a: request(a).digest,
    "the text of the call": lambda a: repr(request(a)),
    "two equal calls": lambda a: request(a) == request(freeze(ARGUMENTS)),
    "the call as a dict": lambda a: dict(request(a)),
}


def in_another_thread(arguments):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(msgspec.json.encode, arguments).result()


def in_a_new_thread(arguments):
    thread = threading.Thread(target=msgspec.json.encode, args=(arguments,))
    thread.start()
    thread.join()


WHOLE |= {"a pool": in_another_thread, "a thread": in_a_new_thread}


def importing(arguments):
    sys.modules.pop("this_is_only_imported_here", None)
    import this_is_only_imported_here

    return this_is_only_imported_here.VALUE


class Own(dict):
    """A class of a program, with methods in C."""


NOTHING = {
    "len": len,
    "bool": bool,
    "type": lambda a: isinstance(a, dict),
    "nothing": lambda a: None,
    "other dicts": lambda a: FrozenDict(x=1).get("x") or Own(x=1).get("x"),
    "other values": lambda a: "x".upper() + str(len([1, 2])) + json.dumps({"a": 1}),
}


def seen(how):
    arguments = watch(freeze(ARGUMENTS))
    with noting(arguments):
        how(arguments)
    return arguments.read & ARGUMENTS.keys(), arguments.whole


@pytest.mark.parametrize("how", BY_NAME.values(), ids=list(BY_NAME))
def test_a_read_by_name_is_noted(how):
    expected = set() if how is BY_NAME["nothing"] else {"path"}
    assert seen(how) == (expected, False)


@each_case("how", WHOLE.values())
def test_every_other_read_counts_as_reading_all(how):
    assert seen(how)[1]


@pytest.mark.parametrize("how", NOTHING.values(), ids=list(NOTHING))
def test_what_is_not_read_is_not_noted(how):
    assert seen(how) == (set(), False)


def test_every_method_of_a_dict_is_watched_or_refused():
    """A new version of Python may add a method."""
    watched = set(vars(type(watch({}))))
    known = {"__len__", "__sizeof__", "__new__", "__init__", "__getattribute__", "__class_getitem__", "__doc__"}
    compared = {"__lt__", "__le__", "__gt__", "__ge__"}  # a dict has no order
    inherited = set(vars(FrozenDict))  # refused, or written with the methods above
    assert set(vars(dict)) - {"fromkeys"} <= watched | known | compared | inherited


@each_case("how", {**BY_NAME, **WHOLE}.values())
def test_the_watch_changes_no_result(how):
    def result(arguments):
        made = how(arguments)
        return made.hex() if isinstance(made, bytes) else made

    usual, watched = result(freeze(ARGUMENTS)), result(watch(freeze(ARGUMENTS)))
    assert watched == usual
    assert type(watched) is type(usual) or isinstance(usual, dict)


@pytest.mark.parametrize("change", [lambda a: a.update(x=1), lambda a: a.pop("path"), lambda a: a.__setitem__("x", 1)])
def test_watched_arguments_cannot_be_changed(change):
    with pytest.raises(TypeError, match="cannot be changed in place"):
        change(watch(ARGUMENTS))


def test_an_import_reads_nothing(tmp_path, monkeypatch):
    (tmp_path / "this_is_only_imported_here.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert seen(importing) == (set(), False)


def test_a_thread_that_gets_only_one_argument_can_be_left_out():
    arguments = watch(freeze(ARGUMENTS))
    with noting(arguments, threads=False), ThreadPoolExecutor(1) as pool:
        assert pool.submit(str.upper, arguments["path"]).result() == "A.TXT"
    assert (arguments.read, arguments.whole) == ({"path"}, False)


def test_a_read_of_a_nested_value_is_a_read_of_its_argument():
    assert seen(lambda a: a["options"]["tags"][0]) == ({"options"}, False)


def test_a_profiler_of_the_program_is_restored():
    calls = []

    def own(frame, event, arg):
        calls.append(event)

    sys.setprofile(own)
    try:
        with noting(watch({})):
            pass
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)
