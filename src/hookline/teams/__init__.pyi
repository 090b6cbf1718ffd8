from .errors import SubagentRefused as SubagentRefused
from .errors import SwitchRefused as SwitchRefused
from .personalities import Personality as Personality
from .roster import Roster as Roster
from .subagents import Team as Team
