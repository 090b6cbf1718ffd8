from ._replay import Replay as Replay
from ._replay import areplay as areplay
from ._replay import replay as replay
from ._replay import replay_all as replay_all
from .format import TapeError as TapeError
from .recording import TapeHook as TapeHook
from .tape import Tape as Tape
