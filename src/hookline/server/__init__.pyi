from .._web.http_server import WebError as WebError
from .app import Server as Server
from .build import build_server as build_server
from .logs import LogFieldsHook as LogFieldsHook
from .logs import logging_with as logging_with
from .logs import setup_logs as setup_logs
from .options import ServerOptions as ServerOptions
