from .errors import SubagentRefusedError as SubagentRefusedError
from .errors import SwitchRefusedError as SwitchRefusedError
from .personality import Personality as Personality
from .roster import Roster as Roster
from .team import Team as Team
