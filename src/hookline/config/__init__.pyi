from .errors import ConfigError as ConfigError
from .settings import Settings as Settings
