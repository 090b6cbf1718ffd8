from .._web.errors import WebError as WebError
from .app import Server as Server
from .build import build_server as build_server
from .options import ServerOptions as ServerOptions
