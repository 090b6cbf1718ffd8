from .errors import SubagentRefusedError as SubagentRefusedError
from .errors import SwitchRefusedError as SwitchRefusedError
from .personalities import Personality as Personality
from .roster import Roster as Roster
from .subagents import Team as Team
