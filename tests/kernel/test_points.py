"""The point table (DESIGN 3)."""

import copy
import pickle
import re
import subprocess
import sys

import pytest

import hookline
import hookline.points
from hookline import HookError, HookRegistry, HookResult, RegistrationError
from hookline._kernel import points as module
from hookline.payloads import Frozen
from hookline.points import POINTS, Point, resolve
from tests.cases import each_case

# Name, model, verbs: exactly the table of DESIGN 3, in its order.
TABLE = [
    ("session_start", "observe", ""),
    ("on_run_start", "pipeline", "replace end stop"),
    ("before_prompt_build", "merge", ""),
    ("before_step", "pipeline", "stop end"),
    ("before_llm", "pipeline", "replace answer end stop"),
    ("on_token", "pipeline", "replace end"),
    ("after_llm", "pipeline", "replace retry end stop"),
    ("before_tool", "pipeline", "replace block answer ask end stop"),
    ("on_progress", "observe", ""),
    ("after_tool", "pipeline", "replace retry end stop"),
    ("tool_end_with_path", "observe", ""),
    ("after_step", "pipeline", "stop"),
    ("on_stop", "pipeline", "keep_going"),
    ("on_error", "pipeline", "retry answer end"),
    ("on_run_end", "pipeline", "replace"),
    ("before_compaction", "pipeline", "replace block"),
    ("approval_requested", "claim", ""),
    ("approval_decided", "observe", ""),
    ("message_received", "observe", ""),
    ("inbound_claim", "claim", ""),
    ("message_sending", "merge", ""),
    ("before_dispatch", "claim", ""),
    ("message_sent", "observe", ""),
    ("subagent_spawning", "merge", ""),
    ("subagent_spawned", "observe", ""),
    ("subagent_ended", "observe", ""),
    ("personality_switched", "merge", ""),
    ("before_ticket_complete", "claim", ""),
    ("after_ticket_revision", "observe", ""),
]
FIELDS = {
    "session_start": "session_id session_key platform personality_id",
    "on_run_start": "task",
    "before_prompt_build": "history personality_id",
    "before_step": "index",
    "before_llm": "messages tools model hop attempt purpose response_format tool_choice params",
    "on_token": "delta text hop final",
    "after_llm": "content tool_calls hop attempt purpose usage cost finish_reason model provider organization_id "
    "response_id duration request source",
    "before_tool": "id name arguments hop attempt ids",
    "on_progress": "phase call_id tool message fraction",
    "after_tool": "id name arguments result error outcome duration",
    "tool_end_with_path": "tool file_path working_dir",
    "on_stop": "signals",
    "on_error": "errors where fatal purpose hop attempt request",
    "on_run_end": "reply status stop errors",
    "before_compaction": "messages reason",
    "approval_requested": "call questions digest",
    "approval_decided": "decision by digest",
    "message_received": "message",
    "inbound_claim": "message",
    "message_sending": "chat_id message",
    "before_dispatch": "chat_id platform message",
    "message_sent": "chat_id message_id",
    "subagent_spawning": "parent prompt personality_id",
    "subagent_ended": "parent child reply",
    "personality_switched": "session_id from_ to",
    "before_ticket_complete": "ticket_id summary criteria tier",
    "after_ticket_revision": "ticket_id reason assignee",
}
RESULTS = {
    "before_prompt_build": "prepend_system append_system override_system",
    "message_sending": "message",
    "subagent_spawning": "prompt personality error",
    "personality_switched": "personality",
    "approval_requested": "approve deny edit",
}
# What the four sources and other frameworks call our points.
ALIASES = {
    "EdgeVox": {
        "ON_RUN_START": "on_run_start",
        "BEFORE_LLM": "before_llm",
        "AFTER_LLM": "after_llm",
        "BEFORE_TOOL": "before_tool",
        "AFTER_TOOL": "after_tool",
        "ON_RUN_END": "on_run_end",
    },
    "Cognesy": {
        "BeforeExecution": "on_run_start",
        "BeforeStep": "before_step",
        "BeforeToolUse": "before_tool",
        "AfterToolUse": "after_tool",
        "AfterStep": "after_step",
        "OnStop": "on_stop",
        "AfterExecution": "on_run_end",
        "OnError": "on_error",
    },
    "Ethos": {
        "session_start": "session_start",
        "before_prompt_build": "before_prompt_build",
        "before_llm_call": "before_llm",
        "after_llm_call": "after_llm",
        "before_tool_call": "before_tool",
        "after_tool_call": "after_tool",
        "tool_end_with_path": "tool_end_with_path",
        "agent_done": "on_run_end",
        "message_received": "message_received",
        "inbound_claim": "inbound_claim",
        "message_sending": "message_sending",
        "before_dispatch": "before_dispatch",
        "message_sent": "message_sent",
        "subagent_spawning": "subagent_spawning",
        "subagent_spawned": "subagent_spawned",
        "subagent_ended": "subagent_ended",
        "personality_switched": "personality_switched",
        "before_ticket_complete": "before_ticket_complete",
        "after_ticket_revision": "after_ticket_revision",
    },
    "Forge": {
        "BeforeLLMCall": "before_llm",
        "AfterLLMCall": "after_llm",
        "BeforeToolExec": "before_tool",
        "AfterToolExec": "after_tool",
        "OnError": "on_error",
        "OnProgress": "on_progress",
    },
    "Claude Code": {
        "SessionStart": "session_start",
        "UserPromptSubmit": "on_run_start",
        "PreToolUse": "before_tool",
        "PostToolUse": "after_tool",
        "Stop": "on_stop",
        "PreCompact": "before_compaction",
        "PermissionRequest": "approval_requested",
        "SubagentStart": "subagent_spawning",
    },
    "LangChain": {
        "before_agent": "on_run_start",
        "before_model": "before_llm",
        "after_model": "after_llm",
        "after_agent": "on_run_end",
    },
    "pydantic-ai": {
        "before_run": "on_run_start",
        "before_model_request": "before_llm",
        "after_model_request": "after_llm",
        "before_tool_execute": "before_tool",
        "after_tool_execute": "after_tool",
        "after_run": "on_run_end",
    },
    "OpenAI Agents": {
        "on_agent_start": "on_run_start",
        "on_llm_start": "before_llm",
        "on_llm_end": "after_llm",
        "on_tool_start": "before_tool",
        "on_tool_end": "after_tool",
        "on_agent_end": "on_run_end",
    },
    "Strands": {
        "BeforeInvocationEvent": "on_run_start",
        "BeforeModelCallEvent": "before_llm",
        "AfterModelCallEvent": "after_llm",
        "BeforeToolCallEvent": "before_tool",
        "AfterToolCallEvent": "after_tool",
        "AfterInvocationEvent": "on_run_end",
    },
    "Google ADK": {
        "before_run_callback": "on_run_start",
        "before_model_callback": "before_llm",
        "after_model_callback": "after_llm",
        "before_tool_callback": "before_tool",
        "after_tool_callback": "after_tool",
        "after_run_callback": "on_run_end",
    },
}


def snake(name):
    return name.lower() if "_" in name else re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def camel(name, first=str.title):
    head, *rest = name.split("_")
    return first(head) + "".join(part.title() for part in rest)


@pytest.fixture
def own():
    """Remove the points that a test declares."""
    before, names = dict(POINTS), dict(module.NAMES)
    yield
    for table, was in ((module.TABLE, before), (module.NAMES, names)):
        table.clear()
        table.update(was)


class Order(Frozen, frozen=True):
    item: str
    count: int = 1


def test_the_table_has_the_29_points_of_the_design_in_order():
    declared = [point for point in POINTS.values() if not point.startswith("test_")]
    assert [(p, p.model, p.verbs) for p in declared] == [(n, m, frozenset(v.split())) for n, m, v in TABLE]
    assert len(TABLE) == 29


@each_case("name", [name for name, _, _ in TABLE])
def test_each_point_has_a_constant_and_says_when_it_fires(name):
    point = getattr(hookline.points, name.upper())
    assert point is POINTS[name] is resolve(name)
    assert point == name
    assert isinstance(point, str)
    assert issubclass(point.payload, Frozen)
    assert point.when
    assert point.closed
    assert point.fired_by
    assert name.upper() in hookline.points.__all__


@each_case(("name", "fields"), FIELDS.items())
def test_each_payload_carries_the_fields_of_the_table(name, fields):
    assert set(fields.split()) <= set(POINTS[name].payload.__struct_fields__)


@pytest.mark.parametrize("name", [name for name, model, _ in TABLE if model in ("merge", "claim")])
def test_merge_and_claim_points_give_the_result_fields_of_the_table(name):
    result = POINTS[name].result
    if name in RESULTS:
        assert set(RESULTS[name].split()) <= set(result.__struct_fields__)
    else:
        assert result is None


def test_tool_points_are_those_that_carry_a_tool():
    assert {p for p in POINTS.values() if p.tool} == {
        "before_tool",
        "on_progress",
        "after_tool",
        "tool_end_with_path",
    }


@each_case(
    ("source", "alias", "name"), [(s, alias, name) for s, names in ALIASES.items() for alias, name in names.items()]
)
def test_every_name_of_the_sources_resolves_in_every_spelling(source, alias, name):
    point = POINTS[name]
    assert point.names[source] == alias
    low = snake(alias)
    for spelling in (alias, low, low.upper(), camel(low), camel(low, str.lower), name, name.upper()):
        assert resolve(spelling) is point


def test_no_source_names_a_point_that_is_not_listed_here():
    for point in POINTS.values():
        for source, alias in point.names.items():
            assert ALIASES[source][alias] == point


@each_case(
    ("typo", "suggestion"),
    [
        ("befor_tool", "Did you mean 'before_tool'?"),
        ("beforetool", "Did you mean 'before_tool'?"),
        ("BeforeToolUses", "Did you mean 'BeforeToolUse', which is 'before_tool' here?"),
        ("PreToolUses", "Did you mean 'PreToolUse', which is 'before_tool' here?"),
        ("before_modle", "Did you mean 'before_model', which is 'before_llm' here?"),
        ("on_run_ends", "Did you mean 'on_run_end'?"),
        ("OnTokens", "Did you mean 'on_token'?"),
        ("SessionEnd", "A session has no end; 'on_run_end' is fired at the end of each run."),
        ("PostToolUseFailures", "'after_tool' is fired for failed calls too; their result has an 'error'."),
        ("wrap_tool_call", "Use 'before_tool' and 'after_tool', or the method 'wrap' of a hook."),
        ("on_event_callback", "The events of a run are those of agent.stream(...), or go to sinks=."),
        ("MessageAddedEvent", "The events of a run are those of agent.stream(...), or go to sinks=."),
        ("BeforeToolsEvent", "'after_llm' is fired with all calls of a reply."),
        ("AfterToolsEvent", "'after_step' is fired after all calls of a reply."),
        ("tool_input_guardrail", "Use a guard at 'before_tool', with tools=."),
        ("input_guardrail", "Use a guard at 'on_run_start'."),
        (
            "xyz",
            "Usual ones are on_run_start, before_llm, after_llm, before_tool and after_tool; hookline.points has all.",
        ),
    ],
)
def test_an_unknown_point_raises_and_suggests_the_nearest(typo, suggestion):
    with pytest.raises(RegistrationError) as caught:
        resolve(typo)
    assert str(caught.value) == f"unknown point '{typo}'. {suggestion}"


def test_moments_of_other_frameworks_without_a_point_are_no_aliases():
    assert not module._ELSEWHERE.keys() & module.NAMES.keys()


@pytest.mark.usefixtures("own")
def test_a_near_miss_of_a_point_of_a_program_suggests_it_as_it_is_written():
    Point("TestShipped", Order, verbs=("replace",))
    with pytest.raises(RegistrationError, match=r"Did you mean 'TestShipped'\?"):
        resolve("test_shiped")


def test_an_unknown_point_with_nothing_near_suggests_nothing():
    with pytest.raises(RegistrationError) as caught:
        resolve("zzz")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("bad", [None, 3, ["before_tool"]])
def test_a_point_that_is_no_name_raises(bad):
    with pytest.raises(RegistrationError, match="a point must be a name, not"):
        resolve(bad)


def test_a_point_survives_copying_and_pickling():
    point = hookline.BEFORE_TOOL
    for same in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert same == point
        assert same.model == "pipeline"
        assert same.payload is point.payload


# Points of one's own


@pytest.mark.usefixtures("own")
async def test_a_program_may_declare_and_fire_its_own_point():
    placed = Point("test_order_placed", Order, verbs=("replace", "block"), when="an order came in")
    registry = HookRegistry()
    registry.on("TestOrderPlaced", lambda ctx, order: order.replace(count=order.count + 1))
    registry.on(placed, lambda ctx, order: HookResult.block("too many") if order.count > 2 else None, phase="guard")
    assert (await registry.fire(placed, Order("tea"))).payload == Order("tea", 2)
    verdict = await registry.fire("test_order_placed", {"item": "tea", "count": 2})
    assert (verdict.action, verdict.value) == ("block", "too many")


class PaidOrder(Order, frozen=True):
    def refuses(self, verb):
        return "too late: the order is paid" if verb == "block" else None


@pytest.mark.usefixtures("own")
async def test_a_payload_of_a_program_may_refuse_a_verb_that_its_point_allows():
    paid = Point("test_order_paid", PaidOrder, verbs=("replace", "block"))
    registry = HookRegistry()
    registry.on(paid, lambda ctx, order: order.replace(count=5))
    assert (await registry.fire(paid, PaidOrder("tea"))).payload.count == 5
    registry.on(paid, lambda ctx, order: HookResult.block("no"), name="judge")
    with pytest.raises(HookError, match="hook 'judge' at test_order_paid: 'block' is too late: the order is paid"):
        await registry.fire(paid, PaidOrder("tea"))


@pytest.mark.usefixtures("own")
def test_declaring_a_point_again_with_the_same_type_is_allowed():
    first = Point("test_order_placed", Order, verbs=("replace",))
    second = Point("test_order_placed", Order, verbs=("replace",))
    assert first == second == resolve("test_order_placed")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("other", [{"model": "observe"}, {"verbs": ("block",)}])
def test_declaring_a_point_again_with_another_type_raises(other):
    Point("test_order_placed", Order, verbs=("replace",))
    with pytest.raises(
        RegistrationError, match="'test_order_placed' is already declared with another payload, model or verbs"
    ):
        Point("test_order_placed", Order, **other)
    with pytest.raises(RegistrationError, match="already declared"):
        Point("before_tool", Order)


@pytest.mark.usefixtures("own")
def test_only_pipeline_points_have_verbs():
    with pytest.raises(RegistrationError, match="only pipeline points have verbs"):
        Point("test_order_placed", Order, model="merge", verbs=("replace",))
    with pytest.raises(RegistrationError, match="unknown point"):
        resolve("test_order_placed")


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("claim", [{"name": "BeforeTool"}, {"names": {"mine": "before_tool"}}])
def test_a_point_of_a_program_cannot_take_over_a_name_in_the_table(claim):
    taken = hookline.BEFORE_TOOL
    try:
        Point(claim.get("name", "test_taker"), Order, names=claim.get("names"))
    except RegistrationError:
        pass
    assert resolve("before_tool") is taken


@pytest.mark.usefixtures("own")
def test_a_point_of_a_program_is_a_plain_pipeline_by_default():
    point = Point("test_order_placed", Order)
    assert (point.model, point.verbs, point.result, point.names) == ("pipeline", frozenset(), None, {})
    assert (point.when, point.closed, point.fired_by) == ("", "the run fails", "the loop")
    assert (point.tool, point.resilient) == (False, False)
    full = Point(
        "test_order_sent",
        Order,
        model="claim",
        result=Order,
        when="w",
        closed="c",
        fired_by="f",
        names={"Shop": "Out"},
        tool=True,
        resilient=True,
    )
    assert (full.model, full.result, full.when, full.closed, full.fired_by) == ("claim", Order, "w", "c", "f")
    assert (full.names, full.tool, full.resilient, full.payload) == ({"Shop": "Out"}, True, True, Order)


@pytest.mark.usefixtures("own")
def test_the_error_about_a_taken_alias_names_its_point():
    with pytest.raises(RegistrationError, match="'test_taker': the name 'before_tool' belongs to point before_tool"):
        Point("test_taker", Order, names={"mine": "before_tool"})
    with pytest.raises(RegistrationError, match="unknown point"):
        resolve("test_taker")


def test_the_error_about_a_point_that_is_no_name_shows_it():
    with pytest.raises(RegistrationError, match=r"a point must be a name, not int \(3\)"):
        resolve(3)


@pytest.mark.usefixtures("own")
def test_aliases_of_points_of_a_program_resolve():
    point = Point("test_order_placed", Order, names={"Shop": "OrderCame"})
    assert resolve("order_came") is point


# Points that other packages declare


def run_alone(code):
    """Run code in a new interpreter without any imports of the package."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


OTHERS = ["stores.channel_points", "teams.points", "stores.ticket_points"]


def test_the_kernel_declares_the_points_of_a_run_only():
    assert run_alone("from hookline._kernel.points import TABLE; print(*TABLE)") == [name for name, _, _ in TABLE[:18]]


@pytest.mark.parametrize("name", ["message_received", "BeforeDispatch", "subagentSpawned", "before_ticket_complete"])
def test_a_point_of_another_package_is_found_without_an_import(name):
    code = f"from hookline._kernel.hook import hook; h = hook({name!r})(lambda ctx, payload: None); print(*h.points)"
    assert run_alone(code) == [str(resolve(name))]


@pytest.mark.parametrize("first", OTHERS)
def test_the_order_of_the_table_does_not_depend_on_what_is_imported_first(first):
    code = f"import hookline.{first}; from hookline._kernel.points import POINTS; print(*POINTS)"
    assert run_alone(code) == [name for name, _, _ in TABLE]


@pytest.mark.parametrize("name", OTHERS)
def test_the_points_of_a_package_are_cheap_to_import(name):
    code = f"import hookline.{name}, sys; print(*(name for name in sys.modules if name.startswith('hookline')))"
    allowed = {"hookline", "hookline._base", "hookline._kernel", *(f"hookline.{other}" for other in OTHERS)}
    allowed |= {"hookline.channels", "hookline.teams", "hookline.stores", "hookline.stores.messages"}
    assert {m for m in run_alone(code) if not m.startswith(("hookline._base.", "hookline._kernel."))} <= allowed


def test_a_name_of_another_package_is_rejected_where_a_program_declares_it():
    code = """
from hookline._base.frozen import Frozen
from hookline._kernel.errors import RegistrationError
from hookline._kernel.points import POINTS, Point
try:
    Point("message_sent", Frozen)
except RegistrationError as error:
    print(str(error).replace(" ", "_"))
print(POINTS["message_sent"].payload.__name__)
"""
    assert run_alone(code) == [
        "point_'message_sent'_is_already_declared_with_another_payload,_model_or_verbs",
        "Outbound",
    ]


@pytest.fixture
def late(monkeypatch, tmp_path):
    """A package that is not imported yet and declares the point ``parcel_late``; ``own`` was declared before."""
    monkeypatch.setattr(module, "TABLE", dict(module.TABLE))
    monkeypatch.setattr(module, "NAMES", dict(module.NAMES))
    monkeypatch.setattr(module, "_imported", list(module.POINT_MODULES))
    Point("own", Frozen)
    code = "from hookline.payloads import Frozen\nfrom hookline.points import Point\n"
    code += "LATE = Point('parcel_late', Frozen, names={'Post': 'LateParcel'})\n"
    (tmp_path / "points_of_the_post.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "POINT_MODULES", (*module.POINT_MODULES, "points_of_the_post"))
    yield
    sys.modules.pop("points_of_the_post", None)


@pytest.mark.parametrize("name", ["parcel_late", "LateParcel"])
def test_the_packages_that_declare_points_are_imported_when_an_unknown_name_is_asked_for(late, name):
    assert resolve("before_tool") == "before_tool"
    assert "points_of_the_post" not in sys.modules
    assert resolve(name) == "parcel_late"


def test_the_packages_that_declare_points_are_imported_when_the_table_is_asked_for_an_unknown_name(late):
    assert POINTS["before_tool"] == "before_tool"
    assert "points_of_the_post" not in sys.modules
    assert POINTS["parcel_late"].payload is Frozen


def test_no_package_is_imported_while_the_points_of_a_run_are_being_declared(late, monkeypatch):
    monkeypatch.setattr(module, "_RUN_POINTS", [])
    Point("one_of_a_run", Frozen)
    assert "points_of_the_post" not in sys.modules


def test_the_table_has_the_points_of_packages_before_those_of_programs(late):
    *packages, program = list(POINTS)
    assert packages == [name for name, _, _ in TABLE] + ["parcel_late"]
    assert program == "own"
    assert len(POINTS) == len(TABLE) + 2


def test_the_table_cannot_be_changed_through_points():
    with pytest.raises(TypeError):
        POINTS["x"] = POINTS["before_tool"]
    assert repr(POINTS).startswith("<points session_start, on_run_start, ")
    assert POINTS.get("nowhere") is None
