"""Chat logs in OpenAI's formats become records: whole conversations and request logs."""

import json

import pytest

SYSTEM = {"role": "system", "content": "Be brief."}
TOOLS = [{"type": "function", "function": {"name": "shell", "description": "Run it", "parameters": {"type": "object"}}}]


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def called(*calls):
    made = [
        {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        for n, name, args in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(n, text):
    return {"role": "tool", "tool_call_id": f"c{n}", "content": text}


def logged(messages, reply, **more):
    reason = "tool_calls" if reply.get("tool_calls") or reply.get("function_call") else "stop"
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
    choice = {"index": 0, "message": reply, "finish_reason": reason}
    response = {"id": f"r{len(messages)}", "model": "gpt-test", "choices": [choice], "usage": usage}
    request = {"model": "gpt-test", "messages": list(messages), "tools": TOOLS, "temperature": 0.5}
    return {"timestamp": 1_790_000_000 + len(messages), "request": request, "response": response, **more}


def request_log(*replies_and_messages):
    """The lines of a request log: each reply of the assistant answers a request with all messages before it."""
    lines, messages = [], []
    for message in replies_and_messages:
        if message["role"] == "assistant":
            lines.append(logged(messages, message))
        messages.append(message)
    return lines


@pytest.fixture
def log(tmp_path):
    def write(*lines, name="log.jsonl"):
        path = tmp_path / name
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return path

    return write


TALK = (
    SYSTEM,
    user("List files"),
    called((1, "shell", {"command": "ls"}), (2, "shell", {"command": "pwd"})),
    result(1, "a.txt"),
    result(2, "/home"),
    said("One file."),
    user("Delete it"),
    called((3, "shell", {"command": "rm a.txt"})),
    result(3, ""),
    said("Deleted."),
)


def check_talk(found):
    first, second = found.runs
    assert (first.info.task, first.end.reply) == ("List files", "One file.")
    assert (second.info.task, second.end.reply) == ("Delete it", "Deleted.")
    assert first.info.ids.session_id == second.info.ids.session_id
    assert first.id != second.id
    assert found.calls(0) == [("shell", {"command": "ls"}, "ok"), ("shell", {"command": "pwd"}, "ok")]
    assert found.calls(1) == [("shell", {"command": "rm a.txt"}, "ok")]
    requests = [m.payload for run in found.runs for m in run.moments if m.point == "before_llm"]
    assert [len(request.messages) for request in requests] == [2, 5, 7, 9]
    assert requests[3].messages[8].content == ""
    assert requests[3].messages[7].tool_calls[0].arguments == {"command": "rm a.txt"}
    assert not found.report.skipped


def test_a_whole_conversation_has_one_run_per_task(imported, log):
    found = imported("openai", log({"messages": TALK, "tools": TOOLS}))
    check_talk(found)
    missing = {moment.point: moment.notes.missing for moment in found.runs[0].moments}
    assert missing["before_llm"] == ("model", "params")
    assert missing["before_tool"] == ()
    assert missing["after_tool"] == ("outcome", "duration")


def test_requests_are_chained_so_that_each_call_counts_once(imported, log):
    found = imported("openai", log(*request_log(*TALK)))
    check_talk(found)
    request = found.runs[0].moments[1]
    assert request.notes.inexact == ""
    assert request.payload.params == {"temperature": 0.5}
    assert [tool.name for tool in request.payload.tools] == ["shell"]
    assert found.runs[0].end.usage.input_tokens == 18
    assert found.runs[0].end.usage.cached_tokens == 4


def test_interleaved_conversations_are_told_apart(imported, log):
    one = request_log(SYSTEM, user("A"), called((1, "shell", {"command": "a"})), result(1, "x"), said("end of A"))
    two = request_log(SYSTEM, user("B"), called((1, "shell", {"command": "b"})), result(1, "x"), said("end of B"))
    found = imported("openai", log(one[0], two[0], two[1], one[1]))
    assert {(run.info.task, run.end.reply) for run in found.runs} == {("A", "end of A"), ("B", "end of B")}
    assert [len(calls) for calls in (found.calls(0), found.calls(1))] == [1, 1]


def test_a_system_prompt_that_changes_does_not_break_the_chain(imported, log):
    lines = request_log(SYSTEM, user("A"), called((1, "shell", {"command": "a"})), result(1, "x"), said("end"))
    lines[1]["request"]["messages"] = [
        {"role": "system", "content": "It is noon."},
        *lines[1]["request"]["messages"][1:],
    ]
    found = imported("openai", log(*lines))
    [run] = found.runs
    requests = [m.payload for m in run.moments if m.point == "before_llm"]
    assert [request.messages[0].content for request in requests] == ["Be brief.", "It is noon."]
    assert len(requests[1].messages) == 4


def test_a_repeated_request_is_a_run_of_its_own_without_calls_counted_twice(imported, log):
    lines = request_log(user("A"), called((1, "shell", {"command": "a"})), result(1, "x"), said("end"))
    found = imported("openai", log(*lines, lines[1]))
    assert sorted(len(found.calls(index)) for index in range(2)) == [0, 1]
    assert found.report.left_out == {"calls before the first request in the log": 1}


def test_function_calls_of_the_old_api_are_tool_calls(imported, log):
    function = {"name": "shell", "arguments": '{"command": "ls"}'}
    answer = {"role": "function", "name": "shell", "content": "a.txt"}
    old = {"role": "assistant", "content": None, "function_call": function}
    talk = (user("Go"), old, answer, old, answer, said("End"))
    for lines in ([{"messages": talk}], request_log(*talk)):
        found = imported("openai", log(*lines))
        assert found.calls() == [("shell", {"command": "ls"}, "ok")] * 2
        assert found.runs[0].end.tool_calls == 2


def test_one_object_with_messages_and_choices_is_a_call(imported, log):
    line = logged([user("Hi")], said("Hello"))
    found = imported("openai", log({**line["request"], **line["response"]}))
    assert [(run.info.task, run.end.reply) for run in found.runs] == [("Hi", "Hello")]


def test_calls_of_the_responses_api_are_chained_by_messages_and_by_id(imported, log):
    call = {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"command": "ls"}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}
    text = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One file."}]}
    first = {
        "request": {"model": "gpt-test", "instructions": "Be brief.", "input": "List files"},
        "response": {"id": "resp_1", "output": [{"type": "reasoning"}, call], "status": "completed"},
    }
    whole = {
        "request": {"model": "gpt-test", "input": [{"role": "user", "content": "List files"}, call, output]},
        "response": {"id": "resp_2", "output": [text], "status": "completed"},
    }
    short = {**whole, "request": {"model": "gpt-test", "input": [output], "previous_response_id": "resp_1"}}
    for second in (whole, short):
        found = imported("openai", log(first, second))
        [run] = found.runs
        assert found.calls() == [("shell", {"command": "ls"}, "ok")]
        assert run.end.reply == "One file."


def test_a_streamed_reply_in_pieces_is_put_together(imported, log):
    line = logged([user("Hi")], said(""))
    piece = {"choices": [{"index": 0, "delta": {"content": "Hel"}}]}
    last = {"choices": [{"index": 0, "delta": {"content": "lo"}, "finish_reason": "stop"}]}
    found = imported("openai", log(line | {"response": [piece, last]}))
    assert found.runs[0].end.reply == "Hello"


def test_arguments_that_are_not_json_are_kept_as_text(imported, log):
    broken = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": "{command: ls"}}
    reply = {"role": "assistant", "content": None, "tool_calls": [broken]}
    found = imported("openai", log({"messages": [user("Go"), reply]}))
    moment = next(m for m in found.runs[0].moments if m.point == "before_tool")
    assert (moment.payload.arguments, moment.payload.raw) == ({}, "{command: ls")
    assert found.runs[0].end is None


@pytest.mark.parametrize("indent", [None, 2])
def test_a_file_may_be_one_json_array(indent, imported, tmp_path):
    path = tmp_path / "all.json"
    path.write_text(
        json.dumps([{"messages": [user("A"), said("1")]}, {"messages": [user("B"), said("2")]}], indent=indent)
    )
    assert [run.info.task for run in imported("openai", path).runs] == ["A", "B"]


def test_lines_that_cannot_be_read_are_counted(imported, log):
    image = {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {}}]}
    found = imported(
        "openai",
        log(
            {"messages": [image, said("A cat.")]},
            "garbage",
            {"prompt": "old completions"},
            {"messages": "text"},
            {"request": {"messages": [user("A")]}, "response": {"error": {"message": "rate limit"}}},
            {"request": {"messages": [user("A")]}, "response": {"choices": "?"}},
            {"response": {"choices": []}},
            {"messages": [{"role": "wizard", "content": "?"}, user("B"), said("2")]},
        ),
    )
    assert [run.info.task for run in found.runs] == ["See\n[image_url]", "B"]
    assert {each.reason: each.count for each in found.report.skipped} == {
        "the line is not JSON": 1,
        "the line has no messages": 2,
        "the reply cannot be read": 1,
        "the reply has no request": 1,
    }
    assert found.report.left_out == {
        "images, sound and files (a placeholder is imported)": 1,
        "requests that failed": 1,
        "messages with an unknown role": 1,
    }


def test_only_so_many_conversations_wait_for_their_next_request(imported, log, monkeypatch):
    monkeypatch.setattr("hookline.importers.openai.MAX_OPEN", 2)
    lines = [logged([user(f"task {n}")], said("end")) for n in range(5)]
    found = imported("openai", log(*lines))
    assert len(found.runs) == 5
    assert found.report.left_out["conversations that were closed early, because too many were open"] == 3
