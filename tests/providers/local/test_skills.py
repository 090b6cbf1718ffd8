"""The embedded model looks at a run for skills."""

from hookline import Agent, ScriptedModel, call, hook, observer, tool
from hookline.hooks import SkillEvolverHook
from hookline.hooks._skill_analysis import NAME


def test_a_run_on_the_embedded_model_always_has_a_defined_outcome(local, tmp_path):
    seen = []

    @tool
    def read_note(name: str) -> str:
        """Read a note."""
        return f"Buy milk and {name}."

    @hook("before_llm")
    def briefly(ctx, request):
        if ctx.agent_name == NAME:
            return request.replace(params={**request.params, "max_tokens": 24})

    @observer("after_llm")
    def see(ctx, answer):
        if ctx.agent_name == NAME:
            seen.append(answer.usage.output_tokens)

    evolver = SkillEvolverHook(tmp_path / "skills", model=local, delay=0)
    turns = [*(call("read_note", name=name) for name in ("eggs", "bread", "tea")), "Buy eggs, bread, tea and milk."]
    agent = Agent("helper", llm=ScriptedModel(turns), tools=[read_note], hooks=[evolver, briefly, see])
    assert agent.run("Make a shopping list of my notes.").status == "completed"
    assert evolver.wait(300)
    (outcome,) = evolver.queue.outcomes()
    assert outcome.kind in ("proposed", "nothing", "unusable")
    assert len(seen) == 1
    assert seen[0] > 0
    assert evolver.store.list() == []
    for skill in evolver.store.list("proposed"):
        assert "read_note" in skill.text
