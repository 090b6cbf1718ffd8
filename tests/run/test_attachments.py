"""Attachments in runs: what hooks see, what models get, what tools return, and what is stored."""

import gc
import json
import os
import sqlite3
import stat
from contextlib import closing
from queue import Queue

import pytest

from hookline import (
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_START,
    Agent,
    Attachment,
    HookResult,
    Message,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.errors import AttachmentError
from hookline.hooks import AuditLogHook, SensitiveDataHook
from hookline.models import ModelResponse
from hookline.records import RecordHook, read_runs
from hookline.stores import JsonSessionStore, SqliteSessionStore
from hookline.tape import Tape, TapeHook, replay

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10


def picture(name="photo.png"):
    """An attachment whose content no other test has."""
    return Attachment.of(PNG + os.urandom(8), name=name)


def answering(*turns):
    return ScriptedModel(turns or ["A cat."])


class Blind:
    """A model of the program that knows nothing about attachments."""

    name, provider = "blind", "example"

    def __init__(self):
        self.requests = []

    async def complete(self, request):
        self.requests.append(request)
        return ModelResponse(content="ok")

    def count_tokens(self, content):
        return 1


# The task.


def test_the_user_message_has_the_attachments_of_the_run(tmp_path):
    model, photo = answering(), picture()
    (tmp_path / "notes.txt").write_text("hello")
    result = Agent("a", llm=model).run("What is this?", attachments=[photo, tmp_path / "notes.txt"])
    (message,) = model.requests[0].messages
    assert [each.name for each in message.attachments] == ["photo.png", "notes.txt"]
    assert message.attachments[0].data == photo.data
    assert result.messages[0] == message


@pytest.mark.parametrize("given", ["photo.png", 3, {"photo.png": 1}])
def test_attachments_that_are_not_a_list_are_rejected_before_the_run(given):
    with pytest.raises(TypeError, match="attachments= takes a list"):
        Agent("a", llm=answering()).run("x", attachments=given)


def test_the_size_limit_of_the_agent_applies_to_every_attachment():
    model = answering()
    agent = Agent("a", llm=model, max_attachment=20)
    for given in (picture(), PNG):
        with pytest.raises(AttachmentError, match="the limit for an attachment is 20 bytes"):
            agent.run("x", attachments=[given])
    assert model.requests == []
    assert Agent("a", llm=answering(), max_attachment=None).run("x", attachments=[picture()]).reply == "A cat."
    with pytest.raises(RegistrationError, match="max_attachment must be a number of bytes"):
        Agent("a", llm=answering(), max_attachment="20 MB")


def test_a_guard_blocks_by_media_type_and_size():
    @guard(ON_RUN_START)
    def only_small_images(ctx, start):
        wrong = [each for each in start.attachments if not each.media_type.startswith("image/") or each.size > 1000]
        return HookResult.end(f"Not accepted: {wrong[0]}.") if wrong else None

    model = answering("one", "two")
    agent = Agent("a", llm=model, hooks=[only_small_images])
    assert agent.run("x", attachments=[Attachment.of(b"words", name="a.txt")]).reply == (
        "Not accepted: a.txt (text/plain, 5 bytes)."
    )
    assert agent.run("x", attachments=[Attachment.of(PNG * 100)]).status == "ended"
    assert model.requests == []
    assert agent.run("x", attachments=[picture()]).reply == "one"


def test_a_hook_may_remove_attachments_before_they_are_in_the_transcript():
    drop = hook(ON_RUN_START)(lambda ctx, start: start.replace(attachments=()))
    model = answering()
    result = Agent("a", llm=model, hooks=[drop]).run("x", attachments=[picture()])
    assert result.messages[0].attachments == ()
    assert model.requests[0].messages[0].attachments == ()


def test_a_hook_at_before_llm_may_remove_them_from_the_request_only():
    @hook(BEFORE_LLM)
    def drop(ctx, request):
        return request.replace(messages=[message.replace(attachments=()) for message in request.messages])

    model = Blind()
    result = Agent("a", llm=model, hooks=[drop]).run("x", attachments=[picture()])
    assert result.reply == "ok"
    assert len(result.messages[0].attachments) == 1


def steering(photo, **options):
    """An agent whose tool steers a picture into its run, and the queue from which the tool takes the run."""
    runs = Queue()

    @tool(effects=[])
    def look() -> str:
        runs.get(timeout=30).steer("This one too.", attachments=[photo])
        return "done"

    return Agent("a", llm=answering(call("look"), "Two cats."), tools=[look], **options), runs


def test_a_steered_message_has_attachments_within_the_limit_of_the_agent(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(PNG)
    agent, runs = steering(path)
    run = agent.start("Look.")
    runs.put(run)
    assert run.wait().reply == "Two cats."
    (photo,) = agent.model.requests[1].messages[-1].attachments
    assert (photo.name, photo.media_type, photo.data) == ("photo.png", "image/png", PNG)

    small, runs = steering(path, max_attachment=10)
    run = small.start("Look.")
    runs.put(run)
    assert "the limit for an attachment is 10 bytes" in run.wait().messages[2].content


def test_a_steered_attachment_is_on_the_tape_in_the_events_and_in_the_audit_log_by_digest(tmp_path):
    photo = picture("Ada Lovelace.png")
    audit = AuditLogHook(tmp_path / "audit.jsonl")
    agent, runs = steering(photo, hooks=[TapeHook(tmp_path / "run.tape"), audit])
    events = []
    run = agent.start("Look.", sinks=[events.append])
    runs.put(run)
    run.wait()
    (steered,) = (event for event in events if type(event).__name__ == "Steered")
    assert steered.attachments == (photo,)
    assert audit.flush(10)
    (record,) = (
        json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines() if '"steered"' in line
    )
    assert record["attachments"] == [f"sha256:{photo.digest} image/png {photo.size}"]
    assert (tmp_path / "run.tape.attachments" / photo.digest).read_bytes() == photo.data
    replayed = replay(tmp_path / "run.tape")
    assert replayed.same, replayed


def test_a_later_message_of_the_session_still_has_them():
    model, session, photo = answering("A cat.", "Black."), Session(), picture()
    agent = Agent("a", llm=model)
    agent.run("What is this?", session=session, attachments=[photo])
    agent.run("Which colour?", session=session)
    assert [len(message.attachments) for message in model.requests[1].messages] == [1, 0, 0]


# Models that do not take them.


def test_a_model_without_attachment_types_refuses_before_it_is_called():
    model = Blind()
    with pytest.raises(
        RunFailedError, match=r"'blind' \(example\) does not take photo.png .*it takes text only"
    ) as failed:
        Agent("a", llm=model).run("x", attachments=[picture()])
    assert failed.value.result.errors[-1].type == "BadRequestError"
    assert model.requests == []


def test_a_model_takes_only_the_types_that_it_names():
    model = Blind()
    model.attachment_types = ("image/*", "text/*")
    agent = Agent("a", llm=model)
    agent.run("x", attachments=[picture(), Attachment.of(b"{}", name="a.json")])
    with pytest.raises(RunFailedError, match=r"does not take a\.pdf .*it takes image/\*, text/\*"):
        agent.run("x", attachments=[Attachment.of(b"%PDF-1.7", name="a.pdf")])
    assert len(model.requests) == 1


# Tool results.


def returning(value):
    def show() -> object:
        """Show a picture."""
        return value() if callable(value) else value

    return tool(effects=[])(show)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda photo: photo, "Attached: photo.png (image/png, 76 bytes)"),
        (lambda photo: ["A chart:", photo], "A chart:\nAttached: photo.png (image/png, 76 bytes)"),
        (lambda photo: (photo,), "Attached: photo.png (image/png, 76 bytes)"),
        (lambda photo: {"n": 1, "chart": photo}, '{"n":1,"chart":"photo.png (image/png, 76 bytes)"}'),
        (lambda photo: [{"n": 1}, photo], '[{"n":1},"Attached: photo.png (image/png, 76 bytes)"]'),
    ],
)
def test_a_tool_may_return_attachments_alone_in_a_list_or_in_a_dict(make, text):
    photo = picture()
    model = answering(call("show"), "Done.")
    result = Agent("a", llm=model, tools=[returning(make(photo))]).run("x")
    assert result.messages[2].content == text
    assert result.messages[2].attachments == (photo,)
    assert model.requests[1].messages[2].attachments[0].data == photo.data


def test_hooks_see_the_attachments_of_a_result_and_may_remove_them():
    seen = []

    @guard(AFTER_TOOL)
    def look(ctx, result):
        seen.append([each.media_type for each in result.attachments])

    drop = hook(AFTER_TOOL)(lambda ctx, result: result.replace(attachments=()))
    agent = Agent("a", llm=answering(call("show"), "Done."), tools=[returning(picture())], hooks=[look])
    assert len(agent.run("x").messages[2].attachments) == 1
    agent = Agent("a", llm=answering(call("show"), "Done."), tools=[returning(picture())], hooks=[look, drop])
    assert agent.run("x").messages[2].attachments == ()
    assert seen == [["image/png"], []]


def test_a_result_that_a_hook_withholds_has_no_attachments():
    withhold = hook(AFTER_TOOL)(lambda ctx, result: result.replace(error="withheld"))
    result = Agent("a", llm=answering(call("show"), "x"), tools=[returning(picture())], hooks=[withhold]).run("x")
    assert (result.messages[2].content, result.messages[2].attachments) == ("withheld", ())


def test_a_result_that_is_too_large_is_an_error_result():
    model = answering(call("show"), "Done.")
    result = Agent("a", llm=model, tools=[returning(picture())], max_attachment=10).run("x")
    assert result.reply == "Done."
    assert result.messages[2].is_error
    assert "the limit for an attachment is 10 bytes" in result.messages[2].content
    assert result.messages[2].attachments == ()


def test_a_model_that_does_not_take_the_attachments_of_a_result_reads_their_names():
    class Calls(Blind):
        async def complete(self, request):
            self.requests.append(request)
            calls = () if len(self.requests) > 1 else (call("show").replace(id="c"),)
            return ModelResponse(content="" if calls else "ok", tool_calls=calls)

    model = Calls()
    result = Agent("a", llm=model, tools=[returning(picture())]).run("x")
    assert result.reply == "ok"
    assert model.requests[1].messages[2].content == "Attached: photo.png (image/png, 76 bytes)"


# Invariants: what was judged is what is sent, and a decision is bound to the digest.


def test_what_a_guard_judged_is_what_the_model_gets(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(PNG)
    judged = []

    @guard(ON_RUN_START)
    def judge(ctx, start):
        judged.append(start.attachments[0].digest)
        path.write_bytes(b"\x89PNG\r\n\x1a\nsomething else")

    model = answering()
    Agent("a", llm=model, hooks=[judge]).run("x", attachments=[path])
    sent = model.requests[0].messages[0].attachments[0]
    assert sent.data == PNG
    assert [sent.digest] == judged


def test_an_approval_of_a_call_with_an_attachment_is_bound_to_its_content():
    """The arguments name an attachment by its digest, and the digest of the approval covers the arguments."""
    one, two = picture(), picture()
    asked, sent = [], []

    @tool(effects=["network"])
    def publish(attachment: str) -> str:
        """Publish an attachment."""
        sent.append(attachment)
        return "published"

    ask = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.ask("Publish?"))

    @hook(APPROVAL_REQUESTED)
    def approve_one(ctx, request):
        asked.append(request.digest)
        return HookResult.approve(by="ann") if request.call.arguments["attachment"] == one.digest else None

    turns = [call("publish", attachment=one.digest), call("publish", attachment=two.digest), reply("ok")]
    Agent("a", llm=ScriptedModel(turns), tools=[publish], hooks=[ask, approve_one]).run("x", attachments=[one, two])
    assert sent == [one.digest]
    assert len(set(asked)) == 2


# Stores carry digests, not contents.


@pytest.fixture(params=["json", "sqlite"])
def store(request, tmp_path):
    return JsonSessionStore(tmp_path / "s") if request.param == "json" else SqliteSessionStore(tmp_path / "s.db")


def saved_and_forgotten(store, photo):
    """Save a session with an attachment, and drop everything that is in memory."""
    session = Session("talk", [Message("user", "What is this?", attachments=(photo,))])
    store.save(session)
    del session, photo
    gc.collect()


def test_a_stored_session_has_the_content_of_its_attachments(store):
    photo = picture()
    data, digest = photo.data, photo.digest
    saved_and_forgotten(store, photo)
    del photo
    gc.collect()
    model = answering("A cat.")
    Agent("a", llm=model).run("Again?", session=store.load("talk"))
    (found,) = model.requests[0].messages[0].attachments
    assert (found.digest, found.data) == (digest, data)


def test_the_stored_transcript_has_the_digest_only(tmp_path, store):
    photo = picture()
    saved_and_forgotten(store, photo)
    if isinstance(store, JsonSessionStore):
        (file,) = store.folder.glob("*.json")
        text = file.read_bytes()
        (content,) = store.folder.glob("*.attachments/*")
        assert stat.S_IMODE(content.stat().st_mode) == 0o600
    else:
        with closing(sqlite3.connect(store.path)) as db, db:
            ((text,),) = db.execute("SELECT data FROM sessions").fetchall()
    assert b"pixels" not in text
    assert photo.digest.encode() in text


def test_deleting_a_session_deletes_the_content(tmp_path, store):
    saved_and_forgotten(store, picture())
    assert stored_contents(store) == 1
    store.delete("talk")
    assert stored_contents(store) == 0


def test_content_that_a_session_no_longer_has_is_deleted_when_it_is_saved(store):
    saved_and_forgotten(store, picture())
    session = store.load("talk")
    session.messages = (Message("user", "A summary."),)
    store.save(session)
    assert stored_contents(store) == 0
    assert store.load("talk").messages == (Message("user", "A summary."),)


def stored_contents(store):
    if isinstance(store, JsonSessionStore):
        return len(list(store.folder.glob("*.attachments/*")))
    with closing(sqlite3.connect(store.path)) as db, db:
        return db.execute("SELECT count(*) FROM attachments").fetchone()[0]


def test_a_session_whose_content_is_missing_is_loaded_and_says_so_when_it_is_needed(store):
    saved_and_forgotten(store, picture())
    gc.collect()
    if isinstance(store, JsonSessionStore):
        next(store.folder.glob("*.attachments/*")).unlink()
    else:
        with closing(sqlite3.connect(store.path)) as db, db:
            db.execute("DELETE FROM attachments")
    (found,) = store.load("talk").messages[0].attachments
    with pytest.raises(AttachmentError, match=r"photo\.png .*attach it again"):
        found.data  # noqa: B018


def test_a_sqlite_file_of_the_previous_version_is_upgraded(tmp_path):
    path = tmp_path / "s.db"
    store = SqliteSessionStore(path)
    store.save(Session("old", [Message("user", "hi")]))
    store.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE attachments")
        db.execute("PRAGMA user_version = 1")
    store = SqliteSessionStore(path)
    assert store.load("old").messages == (Message("user", "hi"),)
    saved_and_forgotten(store, picture())
    assert store.load("talk").messages[0].attachments[0].data.startswith(PNG)


def test_a_tape_has_digests_and_is_replayed_with_the_contents_beside_it(tmp_path):
    photo, charts = picture(), [picture("chart.png")]
    digests, seen = [photo.digest, charts[0].digest], []

    @guard(AFTER_TOOL)
    def read_chart(ctx, result):
        seen.append(result.attachments[0].data)

    path = tmp_path / "run.tape"
    agent = Agent(
        "a",
        llm=answering(call("show"), "Done."),
        tools=[returning(charts.pop)],
        hooks=[read_chart, TapeHook(path)],
    )
    agent.run("x", attachments=[photo])
    assert b"pixels" not in path.read_bytes()
    folder = tmp_path / "run.tape.attachments"
    assert sorted(file.name for file in folder.iterdir()) == sorted(digests)
    del agent, photo
    gc.collect()
    tape = Tape.load(path)
    assert [each.digest for message in tape.requests[1].messages for each in message.attachments] == digests
    replayed = replay(tape, hooks=[read_chart])
    assert replayed.same, replayed
    assert seen[0] == seen[1]


def test_a_tape_without_its_contents_is_replayed_unless_a_hook_needs_them(tmp_path):
    path = tmp_path / "run.tape"
    Agent("a", llm=answering(), hooks=[TapeHook(path)]).run("x", attachments=[picture()])
    (content,) = (tmp_path / "run.tape.attachments").iterdir()
    content.unlink()
    gc.collect()
    assert replay(path).same

    @guard(ON_RUN_START)
    def look(ctx, start):
        start.attachments[0].data  # noqa: B018

    replayed = replay(path, hooks=[look])
    assert replayed.result.status == "failed"
    assert "is not stored here: attach it again" in replayed.result.errors[0].message


def test_a_new_tape_at_the_same_path_deletes_the_contents_of_the_old_one(tmp_path):
    agent = Agent("a", llm=ScriptedModel(["x"], loop=True), hooks=[TapeHook(tmp_path / "run.tape")])
    agent.run("x", attachments=[picture()])
    agent.run("x")
    assert not (tmp_path / "run.tape.attachments").exists()


def test_a_refusal_is_on_the_tape_and_is_replayed(tmp_path):
    agent = Agent("a", llm=Blind(), hooks=[TapeHook(tmp_path / "run.tape")])
    with pytest.raises(RunFailedError):
        agent.run("x", attachments=[picture()])
    replayed = replay(tmp_path / "run.tape")
    assert replayed.same
    assert "does not take photo.png" in replayed.result.errors[-1].message


def test_a_record_has_digests_and_restores_the_descriptions(tmp_path):
    photo = picture("ann@example.com.png")
    Agent("a", llm=answering(call("show"), "x"), tools=[returning(photo)], hooks=[RecordHook(tmp_path)]).run(
        "x", attachments=[photo]
    )
    text = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"pixels" not in text
    assert b"ann@example.com" not in text
    (run,) = read_runs(tmp_path)
    payloads = {moment.point: moment.payload for moment in run.moments}
    for payload in (payloads["on_run_start"], payloads["after_tool"], payloads["on_run_end"].messages[0]):
        (found,) = payload.attachments
        assert (found.digest, found.media_type, found.size) == (photo.digest, "image/png", photo.size)


def test_the_audit_log_has_digests_and_no_names(tmp_path):
    photo = picture("ann.png")
    path = tmp_path / "audit.jsonl"
    audit = AuditLogHook(path)
    Agent("a", llm=answering(call("show"), "x"), tools=[returning(photo)], hooks=[audit]).run("x", attachments=[photo])
    assert audit.flush(10)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    wanted = [f"sha256:{photo.digest} image/png {photo.size}"]
    assert [record["attachments"] for record in records if "attachments" in record] == [wanted, wanted]
    assert {record["type"] for record in records if "attachments" in record} == {"task", "tool"}
    assert "ann.png" not in path.read_text()


def test_events_have_the_description_and_not_the_content():
    events = []
    agent = Agent("a", llm=answering(call("show"), "x"), tools=[returning(picture("chart.png"))], sinks=[events.append])
    agent.run("x", attachments=[picture()])
    by_type = {type(event).__name__: event for event in events}
    assert [each.name for each in by_type["TaskTaken"].attachments] == ["photo.png"]
    assert [each.name for each in by_type["ToolSettled"].attachments] == ["chart.png"]
    assert not any(b"pixels" in event.to_json() for event in events)


# The sensitive-data hook does not look inside.


def test_the_sensitive_data_hook_says_which_contents_it_did_not_search():
    events = []
    secret = Attachment.of(b"card 4111 1111 1111 1111", name="card.txt")
    model = answering(call("show"), "x")
    hooks = [SensitiveDataHook(["card"])]
    agent = Agent("a", llm=model, tools=[returning(picture())], hooks=hooks, sinks=[events.append])
    agent.run("x", attachments=[secret])
    reasons = [event.reason for event in events if type(event).__name__ == "HookExecuted" and event.reason]
    assert reasons == [
        "not searched: the contents of card.txt (text/plain, 24 bytes)",
        "not searched: the contents of photo.png (image/png, 76 bytes)",
    ]
    assert model.requests[0].messages[0].attachments[0].data == secret.data


def test_the_sensitive_data_hook_cleans_the_names():
    model = answering(call("show"), "x")
    hooks = [SensitiveDataHook(["email"])]
    agent = Agent("a", llm=model, tools=[returning(picture("bob@example.com.png"))], hooks=hooks)
    result = agent.run("x", attachments=[picture("ann@example.com.png")])
    names = [each.name for message in result.messages for each in message.attachments]
    assert len(names) == 2
    assert "example.com" not in "".join(names)


def test_the_sensitive_data_hook_withholds_the_attachments_of_a_blocked_result():
    agent = Agent(
        "a",
        llm=answering(call("show"), "x"),
        tools=[returning(["4111 1111 1111 1111", picture()])],
        hooks=[SensitiveDataHook(["card"], "block")],
    )
    message = agent.run("x").messages[2]
    assert message.is_error
    assert message.attachments == ()


def test_observers_of_a_run_without_attachments_see_empty_fields():
    seen = []
    look = observer(ON_RUN_START)(lambda ctx, start: seen.append(start.attachments))
    look_again = observer(AFTER_TOOL)(lambda ctx, result: seen.append(result.attachments))
    Agent("a", llm=answering(call("show"), "x"), tools=[returning("x")], hooks=[look, look_again]).run("x")
    assert seen == [(), ()]
