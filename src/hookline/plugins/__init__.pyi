from .discovery import installed_plugins as installed_plugins
from .errors import PluginError as PluginError
from .loading import load_plugin as load_plugin
from .manager import PluginManager as PluginManager
from .manifest import HOOKLINE_API as HOOKLINE_API
from .manifest import Setting as Setting
from .plugin import Plugin as Plugin
from .plugin import PluginApi as PluginApi
