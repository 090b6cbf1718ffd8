"""The schema of ``POST /decide`` says what the server accepts and answers."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hookline.server.decide.api import CLIENT, schema
from hookline.server.decide.examples import EXAMPLES
from hookline.server.decide.questions import ASKED, PAYLOADS, Question
from tests.server.decide.rig import deciding

DECODER = msgspec.json.Decoder(Question)
SCHEMA = msgspec.json.decode(msgspec.json.encode(schema()))


def validator(name):
    return Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"})


async def test_each_example_is_valid_and_its_answer_too(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        assert await ann.get("/decide/schema") == SCHEMA
        assert list(EXAMPLES) == list(ASKED)
        for point, question in EXAMPLES.items():
            validator("Question").validate(question)
            answer = (await ann.post(**question)).json()
            validator("Answer").validate(answer)
            Draft202012Validator({**SCHEMA, **SCHEMA["payloads"][point]}).validate(answer["payload"])


@pytest.mark.parametrize("point", ASKED)
def test_a_caller_sends_and_sees_what_hooks_can_change(point):
    sent = {each.name for each in msgspec.structs.fields(PAYLOADS[point])}
    fields = {each.name for each in msgspec.structs.fields(point.payload)}
    assert sent <= fields
    kept = {"raw", "hook_ended", "task", "messages", "errors", "cost"} if point == "on_run_end" else {"raw"}
    kept |= {"attachments"} if point == "after_tool" else set()  # a caller has no files of tools
    assert point.payload.editable - kept <= sent, "a hook can change what a caller cannot see"


@given(st.sampled_from(list(EXAMPLES.values())), st.text(min_size=1))
def test_a_field_that_the_schema_does_not_have_is_an_error(example, name):
    for question in ({**example, name: 1}, {**example, "payload": {**example["payload"], name: 1}}):
        if validator("Question").is_valid(question):  # a field that is left out in the example, with a value that fits
            continue
        with pytest.raises(msgspec.ValidationError):
            DECODER.decode(msgspec.json.encode(question))


async def test_the_server_has_its_client(tmp_path):
    async with deciding(tmp_path) as server:
        ann = server.caller()
        answer = await ann.client.get("/decide/client.ts", headers=ann.headers)
        assert answer.text == CLIENT.read_text()
        assert answer.headers["content-type"].startswith("text/plain")
