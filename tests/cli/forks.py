"""Runs the program in forks of a process that has imported it already, which takes a fraction of the time.

Started with the path of a socket to listen at; it ends when its stdin does. Each connection is one run of the program:
`{"args": [...], "cwd": ..., "env": {...}}` and three file descriptors come in, and its exit status goes out. Who leaves
before that has it killed. A fork is a process of its own in a session of its own, and exits as any program does.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys

CLIENT = """\
import json, os, socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect(sys.argv[1])
socket.send_fds(door, [b"."], [0, 1, 2])
asked = {"args": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}
door.sendall(json.dumps(asked).encode() + b"\\n")
status = int(door.makefile().readline())
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""
"""What stands for the program where it is started: its streams are the program's, and its end is the program's end."""


def serve(path: str) -> None:
    """Attend to connections; comes back in each fork, which is to be the program."""
    import docstring_parser  # noqa: F401
    from pydantic import TypeAdapter

    import hookline

    TypeAdapter(int)  # imports the rest of pydantic
    for _, name, _ in pkgutil.walk_packages(hookline.__path__, "hookline."):
        if not name.endswith("__main__"):
            importlib.import_module(name)
    for package in [module for name, module in sys.modules.items() if name.startswith("hookline")]:
        for each in getattr(package, "__all__", ()):
            getattr(package, each)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listening, 0], [], [])
        if 0 in ready:
            os._exit(0)
        connection, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            return attend(connection)
        connection.close()


def attend(connection: socket.socket) -> None:
    """Start the program and tell how it ended; comes back only as the program."""
    _, fds, _, _ = socket.recv_fds(connection, 1, 3)
    asked = json.loads(connection.makefile().readline())
    child = os.fork()
    if child:
        for fd in [*fds, 0, 1, 2]:
            os.close(fd)
        ended, _, _ = select.select([os.pidfd_open(child), connection], [], [])
        if connection in ended:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if connection not in ended:
            connection.sendall(b"%d\n" % status)
        os._exit(0)
    connection.close()
    os.setsid()
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[1:] = asked["args"]
    sys.path[0] = asked["cwd"]


if __name__ == "__main__":
    serve(sys.argv[1])
    runpy.run_module("hookline", run_name="__main__", alter_sys=True)
