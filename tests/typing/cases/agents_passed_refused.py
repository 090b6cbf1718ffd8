"""What takes agents, hooks or tools: what type checkers report."""

from hookline import Agent, ScriptedModel, get_model
from hookline.plugins import Plugin
from hookline.tape import replay
from hookline.teams import Team
from hookline.testing import inject_fault, make_context, scripted_agent

model = ScriptedModel([])
number = Agent("number", llm=model, output_type=int)
team = Team([number])

Team(["number"])  # error: mypy, pyright
Team({"number": 3})  # error: mypy, pyright
Team([number], max_deph=3)  # error: mypy, pyright
Team({"number": number}, max_depth="3")  # error: mypy, pyright
team.add("number")  # error: mypy, pyright
team.run("x", sesion=None)  # error: mypy, pyright
team.run(3)  # error: mypy, pyright
team.start("x", kep=True)  # error: mypy, pyright
Plugin("sums", hooks=["no"])  # error: mypy, pyright
Plugin("sums", tools=[4])  # error: mypy, pyright
replay("x.tape", 3)  # error: mypy, pyright
replay("x.tape", ["no"])  # error: mypy, pyright
replay("x.tape", run_hooks=["no"])  # error: mypy, pyright
inject_fault(3, "watch", "raise")  # error: mypy, pyright
make_context(tols=[])  # error: mypy, pyright
make_context(tools=["no"])  # error: mypy, pyright
make_context(hooks=["no"])  # error: mypy, pyright
scripted_agent(["hi"], tols=[])  # error: mypy, pyright
scripted_agent(["hi"], tools=["no"])  # error: mypy, pyright
scripted_agent(["3"], output_type=int).run("x").output.upper()  # error: mypy, pyright
get_model("openai:gpt-4o", base_ulr="http://localhost/v1")  # error: mypy, pyright
get_model("openai:gpt-4o", api="soap")  # error: mypy, pyright


async def runs() -> None:
    await team.arun("x", sesion=None)  # error: mypy, pyright
