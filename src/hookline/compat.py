"""Alternative names from other frameworks, for programs that are ported. ``docs/coming-from`` describes them.

EdgeVox: :class:`LLMAgent`, :class:`ScriptedLLM`, :class:`AgentEvent`. Cognesy: :class:`HookStack`.
"""

from ._kernel.events import Event
from ._kernel.registry import HookStack
from ._run.agent import Agent
from .models.scripted import ScriptedModel

__all__ = ["AgentEvent", "HookStack", "LLMAgent", "ScriptedLLM"]

AgentEvent = Event
LLMAgent = Agent
ScriptedLLM = ScriptedModel
