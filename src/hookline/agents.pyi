from ._run.agent import Agent as Agent
from ._run.budget import Budget as Budget
from ._run.budget import Limits as Limits
from ._run.cancellation import Interrupt as Interrupt
from ._run.context import AgentContext as AgentContext
from ._run.run import Run as Run
from ._run.session import Session as Session
