"""Frozen JSON, histories, and the base class of values."""

import bisect
import copy
import heapq
import json
import pickle
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Message, ToolCallRequest
from hookline._base.frozen import (
    EMPTY,
    MAX_DEPTH,
    FrozenDict,
    FrozenList,
    History,
    HistoryBuilder,
    any_digest,
    digest,
    empty,
    fingerprint,
    freeze,
    plain,
    private_copy,
    scrub,
    thaw,
)
from hookline._kernel.payloads import ModelRequest, ToolCallResult
from hookline.payloads import Frozen, RunStart

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


def assert_frozen(value):
    assert type(value) in (str, int, float, bool, type(None), FrozenDict, FrozenList)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        assert_frozen(part)


def assert_plain(value):
    assert type(value) in (str, int, float, bool, type(None), dict, list)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        assert_plain(part)


@given(values)
def test_freezing_and_thawing_give_back_an_equal_value(value):
    before = copy.deepcopy(value)
    frozen = freeze(value)
    assert frozen == value
    assert_frozen(frozen)
    thawed = thaw(frozen)
    assert thawed == value
    assert_plain(thawed)
    assert value == before


@given(values)
def test_frozen_values_survive_json_copying_and_pickling(value):
    frozen = freeze(value)
    assert json.loads(json.dumps(frozen)) == value
    assert_plain(copy.deepcopy(frozen))
    assert copy.deepcopy(frozen) == value
    restored = pickle.loads(pickle.dumps(frozen))
    assert restored == value
    assert_frozen(restored)


def test_a_frozen_value_does_not_change_with_the_original():
    original = {"list": [1, {"deep": [2]}]}
    frozen = freeze(original)
    original["list"][1]["deep"].append(3)
    original["new"] = 1
    assert frozen == {"list": [1, {"deep": [2]}]}


def test_freezing_a_frozen_value_returns_the_same_object():
    frozen = freeze({"a": [1]})
    assert freeze(frozen) is frozen
    assert freeze(frozen["a"]) is frozen["a"]


def test_tuples_and_other_mappings_become_json():
    frozen = freeze(MappingProxyType({"a": (1, 2)}))
    assert type(frozen) is FrozenDict
    assert frozen == {"a": [1, 2]}


@pytest.mark.parametrize("bad", [object(), {1: "a"}, {"a": {2, 3}}, [b"x"], {"a": {None: 1}}])
def test_what_is_not_json_raises(bad):
    with pytest.raises(TypeError, match="JSON"):
        freeze(bad)


def test_too_deep_and_circular_values_raise_instead_of_crashing():
    deep = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} levels"):
        freeze(deep)
    circle = {}
    circle["self"] = circle
    with pytest.raises(ValueError, match="levels deep"):
        freeze(circle)


DICT_CHANGES = {
    "setitem": lambda d: d.__setitem__("a", 2),
    "delitem": lambda d: d.__delitem__("a"),
    "ior": lambda d: d.__ior__({"b": 1}),
    "clear": lambda d: d.clear(),
    "pop": lambda d: d.pop("a"),
    "popitem": lambda d: d.popitem(),
    "setdefault": lambda d: d.setdefault("b", 1),
    "update": lambda d: d.update(b=1),
}
LIST_CHANGES = {
    "setitem": lambda x: x.__setitem__(0, 2),
    "delitem": lambda x: x.__delitem__(0),
    "iadd": lambda x: x.__iadd__([1]),
    "imul": lambda x: x.__imul__(2),
    "append": lambda x: x.append(1),
    "clear": lambda x: x.clear(),
    "extend": lambda x: x.extend([1]),
    "insert": lambda x: x.insert(0, 1),
    "pop": lambda x: x.pop(),
    "remove": lambda x: x.remove(1),
    "reverse": lambda x: x.reverse(),
    "sort": lambda x: x.sort(),
}


@pytest.mark.parametrize("change", DICT_CHANGES.values(), ids=DICT_CHANGES)
def test_a_frozen_dict_rejects_every_change(change):
    frozen = freeze({"a": 1})
    with pytest.raises(TypeError, match="FrozenDict cannot be changed in place"):
        change(frozen)
    assert frozen == {"a": 1}


@pytest.mark.parametrize("change", LIST_CHANGES.values(), ids=LIST_CHANGES)
def test_a_frozen_list_rejects_every_change(change):
    frozen = freeze([1, 0])
    with pytest.raises(TypeError, match="FrozenList cannot be changed in place"):
        change(frozen)
    assert frozen == [1, 0]


def test_copies_of_frozen_values_may_be_changed():
    frozen = freeze({"a": [1]})
    for changed in (dict(frozen), copy.copy(frozen), frozen.copy(), frozen | {}):
        changed["b"] = 2
    items = copy.copy(frozen["a"])
    items.append(2)
    assert frozen == {"a": [1]}


@pytest.mark.parametrize(("kind", "content"), [(FrozenDict, {"a": [1]}), (FrozenList, [[1]])])
def test_frozen_values_made_by_their_constructor_hold_nothing_that_can_be_changed(kind, content):
    try:
        made = kind(content)
    except TypeError:
        return
    assert_frozen(made)


# Histories


@given(st.lists(st.integers()), st.lists(st.integers(), max_size=3), st.lists(st.integers()))
def test_a_history_is_the_list_it_models(items, head, more):
    history = History(items).plus(*more).after(*head)
    model = [*head, *items, *more]
    assert list(history) == model
    assert history == model
    assert history == tuple(model)
    assert len(history) == len(model)
    assert bool(history) == bool(model)
    for index in range(-len(model), len(model)):
        assert history[index] == model[index]
    for index in (len(model), -len(model) - 1):
        with pytest.raises(IndexError):
            history[index]
    assert history[1:3] == tuple(model[1:3])
    assert history[::-1] == tuple(reversed(model))
    assert list(reversed(history)) == model[::-1]


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 3), max_size=3)), max_size=25))
def test_branches_of_a_history_never_interfere(steps):
    """Each step extends one of the existing histories; none of the others may change."""
    grown = [(History(), [])]
    for which, items in steps:
        history, model = grown[which % len(grown)]
        grown.append((history.plus(*items), model + items))
    for history, model in grown:
        assert list(history) == model


def test_appending_does_not_copy_the_existing_items():
    first = History(range(1000))
    second = first.plus("a").plus("b")
    assert second._items is first._items
    branch = first.plus("c")
    assert branch._items is not first._items
    assert (second[-1], branch[-1], len(first)) == ("b", "c", 1000)


def test_histories_derived_from_one_another_share_their_head():
    history = History([2]).after(1)
    assert list(history.plus(3).after(0)) == [0, 1, 2, 3]
    assert list(history) == [1, 2]


def test_a_history_knows_what_follows_the_end_of_one_with_another_head():
    sent = History(["task"]).after("system")
    assert History(["task"]).plus("reply").tail_after_end_of(sent) is None  # equal, but not derived from it
    whole = History(["task"])
    sent = whole.after("system")
    assert whole.plus("reply").tail_after_end_of(sent) == ("reply",)
    assert whole.tail_after_end_of(sent) == ()
    assert whole.tail_after_end_of(sent.plus("reply")) is None
    assert whole.plus("reply").after("other").tail_after_end_of(sent) is None
    assert whole.tail_after_end_of(("task",)) is None


def test_histories_compare_by_content_and_are_not_hashable():
    assert History([1, 2]) == History([2]).after(1)
    assert History([1]) != History([2])
    assert History([1]) != "1"
    assert History([1, 2]) == (1, 2)
    with pytest.raises(TypeError):
        hash(History())
    assert repr(History([1])) == "History([1])"


@given(st.lists(st.one_of(st.integers(0, 3), st.just("view"), st.just("branch")), max_size=30))
def test_a_growing_history_and_its_views_never_interfere(steps):
    growing, model, seen = HistoryBuilder([7]), [7], []
    for step in steps:
        if step == "view":
            seen.append((growing.view(), list(model)))
        elif step == "branch":
            seen.append((growing.view().plus("branch"), [*model, "branch"]))
        else:
            growing.append(step)
            model.append(step)
    seen.append((growing.view(), list(model)))
    for view, expected in seen:
        assert list(view) == expected


def test_a_view_is_made_once_until_something_is_added():
    growing = HistoryBuilder()
    assert growing.view() is growing.view()
    before = growing.view()
    growing.append(1)
    assert growing.view() is not before


# Values


class Sample(Frozen, frozen=True):
    name: str
    count: int = 0
    editable = frozenset({"name"})


def test_a_value_cannot_be_assigned_to():
    with pytest.raises(AttributeError):
        Sample("a").name = "b"


def test_replace_makes_a_checked_copy_from_keywords_or_a_mapping():
    value = Sample("a", 1)
    assert value.replace(name="b") == Sample("b", 1)
    assert value.replace({"name": "b", "count": 2}) == Sample("b", 2)
    assert value.replace({"name": "b"}, name="c") == Sample("c", 1)
    assert value == Sample("a", 1)


def test_replace_names_the_nearest_field_for_an_unknown_one():
    with pytest.raises(TypeError, match=r"Sample has no field 'nmae'\. Did you mean 'name'\?"):
        Sample("a").replace(nmae="b")


def test_replace_rejects_a_value_of_the_wrong_type_and_names_the_field():
    with pytest.raises(TypeError, match=r"Sample\.count: Expected `int`, got `str`"):
        Sample("a").replace(count="3")


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (RunStart("x"), {"task": History(["y"])}),
        (ModelRequest(), {"messages": History(["not a message"])}),
        (ModelRequest(), {"messages": ["not a message"]}),
        (ModelRequest(), {"params": 3}),
    ],
    ids=["history for text", "history of junk", "list of junk", "number for a mapping"],
)
def test_replace_checks_nested_values_too(value, changes):
    with pytest.raises(TypeError):
        value.replace(changes)


def test_accept_lets_only_editable_fields_change():
    value = Sample("a", 1)
    assert value.accept(Sample("b", 1)) == Sample("b", 1)
    assert value.accept({"name": "c"}) == Sample("c", 1)
    assert value.accept({"name": "c", "count": 1}) == Sample("c", 1)
    with pytest.raises(TypeError, match="a hook may not change count"):
        value.accept(Sample("a", 2))
    with pytest.raises(TypeError, match="int is not a Sample"):
        value.accept(3)
    with pytest.raises(TypeError, match="no field 'nam'"):
        value.accept({"nam": "x"})


def test_dict_access_returns_plain_mutable_copies():
    request = ToolCallRequest("1", "t", {"a": [1]})
    as_dict = dict(request)
    as_dict["arguments"]["a"].append(2)
    request["arguments"]["b"] = 1
    assert request.arguments == {"a": [1]}
    assert request.replace(as_dict).arguments == {"a": [1, 2]}
    assert list(request) == list(request.keys())
    assert "name" in request
    assert "nme" not in request
    with pytest.raises(KeyError, match="Did you mean 'name'"):
        request["nme"]


def test_dict_access_to_messages_gives_a_list_of_dicts():
    request = ModelRequest(History([Message("user", "hi")]))
    assert request["messages"][0]["content"] == "hi"
    assert request.replace(messages=[*request["messages"], {"role": "user", "content": "more"}]).messages == (
        Message("user", "hi"),
        Message("user", "more"),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda data: ToolCallRequest("1", "t", data),
        lambda data: ToolCallResult("1", "t", data),
        lambda data: ToolCallResult("1", "t", result=data),
        lambda data: ModelRequest(response_format=data),
        lambda data: ModelRequest(params=data),
    ],
)
def test_json_inside_a_payload_is_a_frozen_copy(make):
    data = {"a": [1]}
    payload = make(data)
    data["a"].append(2)
    assert payload == make({"a": [1]})


def test_dict_access_gives_lists_for_every_kind_of_sequence():
    request = ModelRequest((Message("user", "hi"),), tools=())
    messages = request["messages"]
    messages.append({"role": "user", "content": "more"})
    assert [type(messages), type(request["tools"])] == [list, list]
    assert len(request.replace(messages=messages).messages) == 2


def test_plain_turns_values_and_histories_into_builtins():
    assert plain([History([1]), Sample("a")]) == [[1], {"name": "a", "count": 0}]
    with pytest.raises(TypeError, match="object has no JSON form"):
        plain(object())


@given(st.text(), st.integers(-(2**60), 2**60))
def test_a_value_survives_json(name, count):
    value = Sample(name, count)
    assert Sample.from_json(value.to_json()) == value


def test_frozen_json_can_be_a_key_so_that_calls_can_be_counted_and_cached():
    one, same, other = (
        freeze({"a": [1, {"b": None}], "c": 2}),
        freeze({"c": 2, "a": [1, {"b": None}]}),
        freeze({"a": 1}),
    )
    assert {one: "kept"}[same] == "kept"
    assert other not in {one: "kept"}
    assert len({freeze([1, 2]), freeze((1, 2)), freeze([2, 1])}) == 2


# A frozen list is a tuple that looks like a list.


LIST_CHANGES_BY_C = {
    "heapify": heapq.heapify,
    "heappop": heapq.heappop,
    "heappush": lambda x: heapq.heappush(x, 0),
    "insort": lambda x: bisect.insort(x, 0),
    "list.append": lambda x: list.append(x, 0),
    "list.sort": list.sort,
}


@pytest.mark.parametrize("change", LIST_CHANGES_BY_C.values(), ids=LIST_CHANGES_BY_C)
def test_c_code_cannot_change_a_frozen_list(change):
    frozen = freeze([3, 1, 2])
    with pytest.raises(TypeError):
        change(frozen)
    assert frozen == [3, 1, 2]


def test_code_that_looks_for_lists_finds_frozen_ones():
    frozen = freeze({"rows": [[1]]})
    assert isinstance(frozen["rows"], list)
    assert isinstance(frozen["rows"][0], list)
    match frozen["rows"]:
        case list() as rows:
            assert rows == [[1]]
    match frozen:
        case {"rows": [[number]]}:
            assert number == 1


@given(st.lists(scalars, max_size=4), st.lists(scalars, max_size=4))
def test_frozen_lists_compare_as_lists_do(one, other):
    frozen = freeze(one)
    for right in (other, freeze(other)):
        assert (frozen == right) is (one == other)
        assert (right == frozen) is (other == one)
        assert (frozen != right) is (one != other)
    assert frozen != tuple(one)
    assert tuple(one) != frozen
    assert hash(frozen) == hash(freeze(list(one)))


def test_frozen_lists_have_the_order_of_lists():
    low, high = freeze([1, 2]), freeze([1, 3])
    assert low < high <= [1, 3] < [2]
    assert [2] > high >= low > [1]
    assert sorted([[2], high, low]) == [[1, 2], [1, 3], [2]]


def test_slices_sums_and_copies_of_a_frozen_list_are_plain_lists():
    frozen = freeze([1, 2, 3])
    made = [frozen[1:], frozen + [4], frozen * 2, 2 * frozen, frozen.copy(), list(frozen), copy.copy(frozen)]
    assert [type(value) for value in made] == [list] * len(made)
    assert made[:4] == [[2, 3], [1, 2, 3, 4], [1, 2, 3] * 2, [1, 2, 3] * 2]
    assert (frozen[0], frozen[-1], len(frozen), 2 in frozen, frozen.index(3), frozen.count(1)) == (1, 3, 3, True, 2, 1)
    assert list(reversed(frozen)) == [3, 2, 1]
    assert repr(freeze([1, ["a"]])) == "[1, ['a']]"
    with pytest.raises(TypeError):
        frozen + (4,)


def test_a_frozen_list_can_be_added_to_a_list_in_place():
    found = same = [0]
    found += freeze([1, 2])
    assert same == [0, 1, 2]


def test_pydantic_takes_frozen_json():
    from pydantic import TypeAdapter

    frozen = freeze({"rows": [1, 2]})
    assert TypeAdapter(dict[str, list[int]]).validate_python(frozen) == {"rows": [1, 2]}
    assert TypeAdapter(object).dump_json(frozen) == b'{"rows":[1,2]}'


# A frozen dict is a dict, which C code can change: so nothing is shared that must not change.


def test_every_empty_default_is_a_new_object():
    made = [freeze(EMPTY), freeze(EMPTY), empty(), ToolCallRequest("c", "t").arguments, ModelRequest().params]
    assert all(value == {} and type(value) is FrozenDict for value in made)
    assert len({id(value) for value in [*made, EMPTY]}) == 6


def test_a_change_of_the_shared_empty_mapping_affects_no_value():
    dict.__setitem__(EMPTY, "x", 1)
    try:
        assert freeze(EMPTY) == {}
    finally:
        dict.clear(EMPTY)


@given(values)
def test_a_private_copy_is_equal_and_shares_no_dict(value):
    frozen = freeze(value)
    private = private_copy(frozen)
    assert private == frozen
    assert_frozen(private)
    assert fingerprint(private) == fingerprint(frozen)

    def dicts(part):
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        return [id(part)] * isinstance(part, dict) + [found for item in inner for found in dicts(item)]

    assert not set(dicts(frozen)) & set(dicts(private))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: eval("1", d),
        lambda d: dict.__setitem__(d, "n", True),
        lambda d: dict.__setitem__(d, "n", 1.0),
        lambda d: dict.__setitem__(d["rows"][0], "a", 3),
        lambda d: dict.__setitem__(d, "self", d),
        lambda d: dict.__setitem__(d, "n", dict.pop(d, "n")) or dict.__setitem__(d, "rows", dict.pop(d, "rows")),
        dict.clear,
    ],
)
@pytest.mark.parametrize("text", ["x", "\ud800", 2**80])
def test_a_fingerprint_tells_every_change_in_place(change, text):
    frozen = freeze({"text": text, "rows": [{"a": 2}], "n": 1})
    before = fingerprint(frozen)
    assert fingerprint(private_copy(frozen)) == before
    change(frozen)
    assert fingerprint(frozen) != before


@given(values, values)
def test_equal_digests_mean_equal_json(one, other):
    assert (digest(one) == digest(other)) == (sorted_json(one) == sorted_json(other))


def sorted_json(value):
    return json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), "\ud800", "a\udfffb"])
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [None, v], lambda v: {"a": [v]}, lambda v: freeze({"a": v})])
def test_a_value_that_json_cannot_express_has_no_digest(value, wrap):
    with pytest.raises(ValueError, match="is not a number in JSON|not valid Unicode"):
        digest(wrap(value))
    assert any_digest(wrap(value)) == any_digest(wrap(scrub(value)))


def test_a_key_that_json_cannot_express_has_no_digest():
    with pytest.raises(ValueError, match="not valid Unicode"):
        digest({"\ud800": 1})


@pytest.mark.parametrize("position", [0, slice(0, 2)])
def test_a_payload_is_no_list_and_the_error_names_its_fields(position):
    with pytest.raises(TypeError, match="ToolCallRequest has no items at positions, only fields: .*arguments"):
        ToolCallRequest(id="1", name="read")[position]
