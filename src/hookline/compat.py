"""Names that another system uses for the same things; its page in ``docs/coming-from`` tells which.

EdgeVox: :class:`LLMAgent`, :class:`ScriptedLLM`, :class:`AgentEvent`.
"""

from ._base.event import Event
from ._run.agent import Agent
from .models.scripted import ScriptedModel

__all__ = ["AgentEvent", "LLMAgent", "ScriptedLLM"]

AgentEvent = Event
LLMAgent = Agent
ScriptedLLM = ScriptedModel
