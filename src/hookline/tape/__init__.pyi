from ._replay import Replay as Replay
from ._replay import areplay as areplay
from ._replay import replay as replay
from .format import TapeError as TapeError
from .recording import TapeHook as TapeHook
from .tape import Tape as Tape
