"""The embedded model with a memory: a whole run."""

from hookline import Agent, Limits
from hookline.hooks import EpisodeLoggerHook, MemoryInjectionHook
from hookline.stores import MemoryStore


def test_a_run_on_the_embedded_model_gets_the_facts_in_memory(local, tmp_path):
    memory, asked = MemoryStore(tmp_path / "memory.db"), []
    memory.add_fact("name of the user", "Ada")

    class Spy:
        name, provider = local.name, local.provider
        count_tokens = staticmethod(local.count_tokens)

        async def complete(self, request):
            asked.append(request)
            return await local.complete(request)

    hooks = [MemoryInjectionHook(memory), EpisodeLoggerHook(memory)]
    agent = Agent(
        "helper", "", "You are kind.", llm=Spy(), hooks=hooks, limits=Limits(steps=1), params={"max_tokens": 8}
    )
    result = agent.run("Say my name.")
    assert result.status in ("completed", "stopped")
    assert result.errors == ()
    assert [message.role for message in asked[0].messages] == ["system", "user"]
    assert asked[0].messages[0].content == "You are kind.\n\nWhat you know:\n- name of the user: Ada"
    assert result.usage.input_tokens > 10
