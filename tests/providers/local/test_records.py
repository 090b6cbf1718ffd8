"""A run of the embedded model is recorded like any other."""

import pytest

from hookline import Agent, Limits, get_model, tool
from hookline.records import Account, RecordHook, read_runs


@pytest.mark.slow
def test_a_run_of_the_embedded_model_is_recorded(tmp_path):
    @tool(effects=[])
    def clock() -> str:
        """Tell the time."""
        return "12:30"

    agent = Agent(
        "a", "", "Be brief.", llm=get_model("local"), params={"max_tokens": 8}, tools=[clock], limits=Limits(steps=2),
        record=RecordHook(tmp_path, points="all"),
    )  # fmt: skip
    result = agent.run("Say hello.")
    account = Account()
    (run,) = read_runs([tmp_path], account=account)
    assert not account
    (reply, *_) = [moment.payload for moment in run.moments if moment.point == "after_llm"]
    assert reply.usage.output_tokens > 0
    assert reply.request.messages[-1].content == "Say hello."
    assert (run.end.status, run.end.usage) == (result.status, result.usage)
