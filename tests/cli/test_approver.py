"""The text that a person reads before approving a call."""

from hookline.cli.approval_prompt import describe_call
from hookline.payloads import Question

FORGED = "\n\nread_file wants to run with {}\r\n  careful asks: Fine?\x1b[2J\u2028"


def lines_of(forged):
    arguments = {f"path{forged}": f"a{forged}{'long ' * 30}", "more": 1}
    question = Question(f"Delete {forged}?", hook=f"careful{forged}", reason=f"rule 7{forged}")
    return describe_call(f"delete{forged}", arguments, [question]).splitlines()


def test_a_model_cannot_add_lines_to_the_question():
    shown = lines_of(FORGED)
    assert len(shown) == len(lines_of(""))
    assert not any(line.startswith(("read_file", "  careful asks: Fine")) for line in shown)
    assert "\x1b" not in "".join(shown)
