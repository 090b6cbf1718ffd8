"""The list of runs: who puts runs into it, what it says about them, and what is deleted with them."""

import asyncio
import socket
import time

import pytest

from hookline import Agent, HookResult, ScriptedModel, call, guard, hook, reply, tool
from hookline.cli.explain import _Printer
from hookline.errors import RegistrationError, RunFailedError
from hookline.explain.from_facts import stored_view
from hookline.explain.view import EventView, ToolCallView
from hookline.hooks import ObservabilityHook, shadow
from hookline.stores import RunStore, StoreError
from hookline.stores.runs import DURABLE, RunRecord, StoredEvent
from hookline.teams import Team

DAY = 24 * 3600.0


@tool
def look() -> str:
    """Look at something."""
    return "seen"


@tool
async def wait_long() -> str:
    """Take so long that a subagent begins meanwhile."""
    await asyncio.sleep(0.2)
    return "waited"


@guard("before_tool", tools="look")
def not_today(ctx, request):
    return HookResult.block("No.", reason="not today")


@pytest.fixture
def store(tmp_path):
    made = RunStore(tmp_path / "runs.db")
    yield made
    made.close()


def agent(**options):
    return Agent("helper", llm=ScriptedModel([call("look"), reply("Done.")], loop=True), tools=[look], **options)


# Programs.


def test_a_program_lists_its_runs_in_a_store_a_file_or_that_of_the_project(tmp_path, monkeypatch, store):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hookline.toml").write_text(f"runs = {str(tmp_path / 'runs.db')!r}\n")
    agents = [agent(runs=True), agent(runs=tmp_path / "runs.db"), agent(runs=store), agent()]
    recorders = {hook for each in agents for hook in each.hooks}
    assert len(recorders) == 2  # one for the file, and one for the store
    results = [each.run("Look.") for each in agents]
    assert all(hook.flush(20) for hook in recorders)
    found = store.runs()
    assert {run.id for run in found} == {result.ids.run_id for result in results[:3]}
    assert {(run.origin, run.status, run.tool_calls) for run in found} == {("library", "completed", 1)}


@pytest.mark.sqlite
def test_a_place_that_cannot_be_a_list_of_runs_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in (None, 7, "", [], ObservabilityHook):
        with pytest.raises(RegistrationError, match="runs= takes True, a SQLite file, a PostgreSQL address"):
            agent(runs=wrong)
    (tmp_path / "hookline.toml").write_text('runs = "none"\n')
    with pytest.raises(RegistrationError, match="the setting runs of this project is none"):
        agent(runs=True)
    assert isinstance(next(iter(agent(runs=ObservabilityHook(tmp_path / "a.db")).hooks)), ObservabilityHook)


def test_a_durable_run_is_in_the_list_even_if_nothing_else_records_it(store):
    result = agent().run("Look.", durable=store)
    (run,) = store.runs(outermost=True)
    assert (run.id, run.origin, run.task, run.status) == (result.ids.run_id, "library", "Look.", "completed")
    assert (run.steps, run.tool_calls, run.ended is not None, run.observed) == (2, 1, True, False)
    assert stored_view(store, run).reply == "Done."
    assert store.delete(run.id)
    assert store.runs() == []


def test_a_durable_run_that_failed_or_lost_its_process_has_this_status(store):
    broken = Agent("broken", llm=ScriptedModel([ValueError("no")]))
    with pytest.raises(RunFailedError):
        broken.run("Fail.", durable=store, run_id="run_failed")
    killed = RunStore(store.path, lease_seconds=1e-6)
    killed.journal.claim("run_killed", "broken", b'{"task":"Be killed."}')
    killed.close()
    assert {run.id: run.status for run in store.runs()} == {"run_failed": "failed", "run_killed": "interrupted"}
    assert [run.id for run in store.runs(states=("interrupted",))] == ["run_killed"]
    assert [run.id for run in store.runs(states=("failed", "interrupted"))] == ["run_killed", "run_failed"]
    assert store.runs(states=("running",)) == []


# What is known of a run without events.


def shown_at_a_terminal(view):
    return "\n".join(line.plain for line in _Printer(view).parts())


def test_a_run_is_shown_from_its_facts_with_its_subagents_and_says_what_is_missing(store):
    team = Team()
    clerk = Agent("clerk", llm=ScriptedModel([call("look"), reply("I may not.")]), tools=[look], hooks=[not_today])
    turns = [call("delegate", to="clerk", task="Look."), reply("Not today.")]
    boss = Agent("boss", llm=ScriptedModel(turns), tools=[team], runs=store)
    team.add(clerk)
    team.add(boss)
    result = boss.run("Have a look.")
    (recorder,) = (hook for hook in boss.hooks if isinstance(hook, ObservabilityHook))
    assert recorder.flush(20)
    (run,) = store.runs(outermost=True)
    view = stored_view(store, run)
    assert (view.id, view.status, view.tool_calls, view.input_tokens) == (
        result.ids.run_id,
        "completed",
        1,
        result.usage.input_tokens,
    )
    (delegated,) = [item for step in view.steps for item in step.items if getattr(item, "tool", "") == "delegate"]
    (inner,) = delegated.runs
    (blocked,) = [item for step in inner.steps for item in step.items if getattr(item, "tool", "") == "look"]
    assert (inner.agent, inner.status, blocked.outcome) == ("clerk", "completed", "blocked")
    assert [(each.hook, each.verb, each.reason) for moment in blocked.moments for each in moment.decisions] == [
        ("not_today", "block", "not today")
    ]
    assert (view.subagents.runs, view.subagents.steps, view.subagents.tool_calls) == (1, 2, 1)
    assert (view.has_texts, view.rules) == (False, store.facts(run.id)[0].run.rules)
    assert "not its texts, arguments and results: those are stored for runs of a server" in view.notes[0]
    assert [each.id for each in store.runs(outermost=True, hook="not_today", verb="block")] == [run.id]
    assert [each.id for each in store.runs(outermost=True, tool="look")] == [run.id]
    assert store.runs(outermost=True, hook="not_today", verb="ask") == []


def delegating(store, *calls):
    """Return the result of an agent that makes calls at the same time, one of them for a subagent, and its view."""
    team = Team()
    clerk = Agent("clerk", llm=ScriptedModel([call("wait_long"), reply("Seen.")]), tools=[wait_long])
    turns = [[call("delegate", to="clerk", task="Look."), *calls], reply("Done.")]
    boss = Agent("boss", llm=ScriptedModel(turns), tools=[team, wait_long], runs=store)
    team.add(clerk)
    team.add(boss)
    result = boss.run("Have a look.")
    (recorder,) = (hook for hook in boss.hooks if isinstance(hook, ObservabilityHook))
    assert recorder.flush(20)
    return result, stored_view(store, store.find(result.ids.run_id))


def test_the_newest_run_of_the_list_is_not_one_of_its_subagents(store):
    result, _ = delegating(store)
    assert len(store.runs()) == 2
    assert store.find("last").id == result.ids.run_id
    with pytest.raises(StoreError, match=f"the newest are {result.ids.run_id};"):
        store.find("nothing")


def test_a_subagent_is_shown_in_the_call_that_started_it_not_in_another_one_at_the_same_time(store):
    _, view = delegating(store, call("wait_long"))
    calls = {item.tool: item for step in view.steps for item in step.items if isinstance(item, ToolCallView)}
    assert [run.agent for run in calls["delegate"].runs] == ["clerk"]
    assert calls["wait_long"].runs == []


def test_a_run_is_shown_whose_calls_passed_no_hook(store):
    plain = Agent("plain", llm=ScriptedModel([call("wait_long"), reply("Done.")]), tools=[wait_long], runs=store)
    result = plain.run("Wait.")
    (recorder,) = (each for each in plain.hooks if isinstance(each, ObservabilityHook))
    assert recorder.flush(20)
    shown = shown_at_a_terminal(stored_view(store, store.find(result.ids.run_id)))
    assert "wait_long ok" in shown
    assert "█" in shown


def test_a_decision_about_a_call_is_shown_at_the_call(store):
    @hook("approval_requested")
    def boss(ctx, request):
        return HookResult.deny("Not now.", reason="closed")

    asks = guard("before_tool", name="asks")(lambda ctx, request: HookResult.ask("May it?"))
    recorder = ObservabilityHook(store)
    result = agent(hooks=[asks, boss, recorder]).run("Look.")
    assert recorder.flush(20)
    view = stored_view(store, store.find(result.ids.run_id))
    (asked,) = (item for step in view.steps for item in step.items if isinstance(item, ToolCallView))
    assert (asked.decision, asked.decided_by, asked.outcome) == ("denied", "boss", "blocked")
    said = [(moment.point, each.hook, each.verb) for moment in asked.moments for each in moment.decisions]
    assert said == [("before_tool", "asks", "ask"), ("approval_requested", "boss", "claim")]
    assert "denied by boss" in shown_at_a_terminal(view)


def test_a_decision_in_shadow_mode_is_not_shown_as_one(store):
    result = agent(hooks=[shadow(not_today)], runs=store).run("Look.")
    (recorder,) = (hook for hook in agent(runs=store).hooks if isinstance(hook, ObservabilityHook))
    assert recorder.flush(20)
    view = stored_view(store, store.find(result.ids.run_id))
    events = [item.text for step in view.steps for item in step.items if isinstance(item, EventView)]
    assert events == ["In shadow mode, not_today would block: not today"]
    assert not any(moment.verbs for moment in view.moments())
    assert [run.id for run in store.runs(hook="not_today", verb="shadow")] == [result.ids.run_id]
    assert store.runs(verb="block") == []


def test_a_halted_run_is_shown_with_who_halted_it_and_why(store):
    store.halts.halt("it charges twice", by="ada")
    result = agent(runs=store).run("Look.")
    (recorder,) = (hook for hook in agent(runs=store).hooks if isinstance(hook, ObservabilityHook))
    assert recorder.flush(20)
    assert stored_view(store, store.find(result.ids.run_id)).why == "The run was halted by ada: it charges twice."


# Deleting.


def tables_of_runs(store):
    """The columns of each table with runs, and their types, without those that are numbered by the database."""
    found = {}
    with store.db.transaction() as db:
        for name, sql in db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = {row[1]: row[2] for row in db.execute(f"PRAGMA table_info({name})")}
            numbered = [column for column in columns if f"{column} INTEGER PRIMARY KEY" in sql]
            if "run_id" in columns:
                found[name] = {column: kind for column, kind in columns.items() if column not in numbered}
    return found


def fill(store, id):
    """Put a row of a run into every table that has runs, also into those that are added later."""
    values = {"TEXT": "", "INTEGER": 1, "REAL": 1.0, "BLOB": b""}
    known = {"run_id": id, "key": id, "status": "completed", "ended": 2.0}
    tables = tables_of_runs(store)
    with store.db.transaction(write=True) as db:
        for name, columns in tables.items():
            row = [known.get(column, values[kind]) for column, kind in columns.items()]
            db.execute(f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(row))})", row)


def left(store, id):
    tables = tables_of_runs(store)
    return [name for name in tables if store.db.execute(f"SELECT 1 FROM {name} WHERE run_id = ?", (id,))]


@pytest.mark.sqlite
@pytest.mark.parametrize("how", ["delete", "prune", "prune_served"])
def test_nothing_is_left_of_a_run_that_is_deleted(store, how):
    store.open()
    fill(store, "run_old")
    fill(store, "run_kept")
    store.db.execute(
        "UPDATE runs SET ended = ?, created = ? WHERE run_id = 'run_kept' RETURNING 1", (time.time(),) * 2, write=True
    )
    assert len(left(store, "run_old")) >= 8
    if how == "prune_served":  # the row and the facts stay for the time of prune
        store.db.execute("UPDATE runs SET transport = 'api' WHERE run_id = 'run_old' RETURNING 1", (), write=True)
        assert store.prune_served(30) == 1
        assert sorted(left(store, "run_old")) == ["facts", "runs"]
        assert (store.get("run_old").transport, store.prune(30)) == ("", 1)
    elif how == "prune":
        assert store.prune(30) == 1
    else:
        assert store.delete("run_old")
        assert not store.delete("run_old")
    assert left(store, "run_old") == []
    assert sorted(left(store, "run_kept")) == sorted(tables_of_runs(store))


@pytest.mark.parametrize(
    ("status", "process", "shown"),
    [
        ("waiting", {"host": DURABLE, "pid": 0}, ("waiting", "It waits for a decision.")),
        ("running", {"host": socket.gethostname(), "pid": 2**22 + 1}, ("interrupted", "It was interrupted")),
    ],
    ids=["waits", "was killed"],
)
def test_a_run_without_an_end_has_the_same_status_in_the_list_and_in_its_view(store, status, process, shown):
    at = time.time()
    served = RunRecord(
        "run_open", "a", "me", "s", "s", "t", "c", "api", "x", created=at, started=at, status=status, **process
    )
    events = [
        b'{"type":"run_started","seq":1,"at":1.0,"run_id":"run_open","ids":{"run_id":"run_open","agent":"a"}}',
        b'{"type":"step_started","seq":2,"at":1.0,"run_id":"run_open","index":0}',
        b'{"type":"model_called","seq":3,"at":1.0,"run_id":"run_open","model":"m"}',
        b'{"type":"tool_called","seq":4,"at":1.0,"run_id":"run_open","call_id":"call_1","tool":"look"}',
    ]
    store.write([served], [StoredEvent("run_open", n, "x", at, data) for n, data in enumerate(events, 1)])
    (listed,) = store.runs()
    view = stored_view(store, listed)
    assert (listed.status, view.status) == (shown[0], shown[0])
    assert view.why.startswith(shown[1])


def test_a_run_that_can_go_on_is_not_deleted(store):
    about = {"created": 1.0, "started": 1.0, "status": "waiting", "host": DURABLE, "pid": 0}
    served = RunRecord("run_served", "a", "me", "s", "s", "t", "c", "api", "x", **about)
    store.write([served], [StoredEvent("run_served", 1, "run_accepted", 1.0, b"{}")])
    store.journal.claim("run_held", "a", b"{}")
    assert not store.delete("run_served")
    assert not store.delete("run_held")
    assert not store.delete("run_unknown")
    assert store.prune(30) == 0
    store.db.execute("UPDATE runs SET created = 1.0 WHERE run_id = 'run_held' RETURNING 1", (), write=True)
    assert store.prune(30) == 0
    assert {run.id for run in store.runs()} == {"run_served", "run_held"}
