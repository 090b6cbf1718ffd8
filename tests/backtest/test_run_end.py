"""Rules at ``on_run_end``: they see the whole result, although a record leaves out messages of the last request."""

from hookline import ON_RUN_END, Agent, HookResult, ScriptedModel, call, hook, observer, reply, tool
from hookline.backtest import backtest
from hookline.records import RecordHook


@tool(effects=[])
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


def test_a_rule_at_the_end_of_a_run_sees_all_messages_that_the_run_added(tmp_path):
    seen = []

    @observer(ON_RUN_END)
    def watch(ctx, result):
        seen.append([(message.role, message.content) for message in result.messages])

    turns = [call("add", a=1), call("add", a=2), reply("done")]
    Agent("x", llm=ScriptedModel(turns), tools=[add], instructions="Be brief.", hooks=[watch],
          record=RecordHook(tmp_path)).run("Add")  # fmt: skip
    roles = [role for role, _ in seen[0]]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]

    @hook(ON_RUN_END)
    def all_there(ctx, result):
        is_same = [(message.role, message.content) for message in result.messages] == seen[0]
        return None if is_same else HookResult.replace(result.replace(reply="messages are missing"))

    report = backtest([all_there], [tmp_path])
    assert report.judged == 1
    assert report.different_runs == 0
