"""Typed output of served agents is JSON in every API."""

from pydantic import BaseModel

from hookline import call, reply, tool

from .a2a.rig import assemble, message_request, reply_of, sent, serving_a2a, stream_events
from .rig import ME, make, read_all, serving
from .test_chat import chatting, streamed, whole


class City(BaseModel):
    name: str
    people: int = 0


@tool
def look() -> str:
    """Look."""
    return "seen"


JSON = '{"name":"Rome","people":0}'
FENCED = 'Here it is:\n```json\n{"name": "Rome"}\n```'


def typed(*turns, output_type=City, **options):
    return make([reply(turn) if isinstance(turn, str) else turn for turn in turns], output_type=output_type, **options)


async def test_the_reply_of_a_served_run_is_the_json_of_its_output(tmp_path):
    async with serving(tmp_path, typed("no", FENCED)) as service:
        run = await service.wait((await service.start(ME, "x")).id, ME)
        assert (run.status, run.reply) == ("completed", JSON)
        events = {event["type"]: event for event in await read_all(service, run.id)}
        assert events["run_finished"]["result"]["output"] == {"name": "Rome", "people": 0}
        assert events["run_closed"]["reply"] == JSON
        assert events["output_checked"]["output"] == {"name": "Rome", "people": 0}


async def test_a_served_run_with_invalid_output_says_why(tmp_path):
    async with serving(tmp_path, typed("no", output_retries=0)) as service:
        run = await service.wait((await service.start(ME, "x")).id, ME)
        assert (run.status, run.reply) == ("failed", "")
        assert (
            run.error == "OutputError: the final reply does not match City: the reply is not JSON. The reply was: 'no'"
        )


async def test_a_chat_completion_of_typed_output_is_the_json_only(tmp_path):
    looking = reply("Let me look.", tool_calls=[call("look")])
    async with chatting(tmp_path, typed(looking, FENCED, tools=[look])) as place:
        assert await whole(place) == (JSON, "stop")
    async with chatting(tmp_path, typed('{"value": 3}', output_type=int)) as place:
        assert await whole(place) == ("3", "stop")


async def test_a_chat_stream_of_typed_output_has_the_json_once(tmp_path):
    async with chatting(tmp_path, typed('{"name": "Rome"}'), chat_stream="live") as place:
        assert await streamed(place) == ('{"name": "Rome"}', "stop")
    async with chatting(tmp_path, typed('{"name": "Rome"}'), chat_stream="settled") as place:
        assert await streamed(place) == (JSON, "stop")


async def test_the_artifact_of_an_a2a_task_is_the_json(tmp_path):
    async with serving_a2a(tmp_path, typed("no", FENCED, FENCED)) as rig, rig.client() as client:
        assert reply_of(await sent(client, message_request("hi"))) == JSON
        assert reply_of(assemble(await stream_events(client, message_request("hi")))) == JSON
