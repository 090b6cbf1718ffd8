"""The rules of examples/office, without a browser."""

from pathlib import Path

from hookline import call
from hookline.plugins.files import load_file
from hookline.testing import scripted_agent

OFFICE = Path(__file__).parents[2] / "examples" / "office"


def test_small_talk_with_the_clerk_is_answered_in_a_sentence_and_the_poet_is_left_alone():
    rules, _ = load_file(OFFICE / "rules.py")
    hooks = [rules.one_tool_at_a_time, rules.reply_with_the_tool_result]

    def ticket_list() -> str:
        return "T-1"

    clerk = scripted_agent([call("ticket_list")], tools=[ticket_list], hooks=hooks)
    for said in ("What can you do?", "Hello"):
        assert clerk.run(said).reply == rules.HELP
    assert clerk.run("Which tickets are open?").reply == "T-1"
    assert scripted_agent(["A verse."], hooks=hooks).run("What can you do?").reply == "A verse."
