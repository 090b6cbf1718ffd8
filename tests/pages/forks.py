"""Runs programs in forks of one process that has everything imported: a command takes a tenth of the time.

Started as a program, with the path of a socket to listen at. Each connection is one program: `{"argv": [...],
"cwd": ..., "env": {...}}` and three file descriptors come in, and then the numbers of signals, a byte each; its exit
status goes out.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import socket
import sys
import threading
import traceback

import hookline

SECONDS = 100

CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect({path!r})
asked = {{"argv": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "cwd": os.getcwd(), "env": dict(os.environ)}}
fds = array.array("i", [0, 1, 2])
door.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
door.sendall(json.dumps(asked).encode() + b"\\n")
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: door.send(bytes([number])))
sys.exit(int(door.makefile().readline()) % 256)
"""
"""The program that stands on PATH in place of one that runs here."""


def code_twice(code):
    """A page's code runs in an empty folder, and then again in the same one."""
    exec(code, {})
    exec(code, {})


def program(argv):
    """Run a program in this process, as if it had been started."""
    match argv:
        case ["hookline", *_]:
            from hookline.cli.main import main

            main()
        case ["pytest", *_]:
            import pytest

            sys.exit(pytest.console_main())
        case ["twice", file]:
            with open(file) as code:
                code_twice(code.read())
        case ["python", file, *rest]:
            sys.argv, sys.path[0] = [file, *rest], os.path.dirname(os.path.abspath(file))
            runpy.run_path(file, run_name="__main__")
        case _:
            sys.exit(f"{argv[0]} {argv[1:]}: nothing that runs here")


def run(asked, fds):
    """The child: become the program, and never come back."""
    status = 1
    try:
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        sys.stdout.reconfigure(line_buffering=True)  # output and errors in the order in which they were written
        sys.argv = asked["argv"]
        signal.alarm(SECONDS)
        program(asked["argv"])
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            threading._shutdown()  # as at the end of a process
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def attend(connection):
    """The process of one connection: start the program, hand signals on, and tell how it ended.

    If whoever asked for it is gone, it is ended.
    """
    _, fds, _, _ = socket.recv_fds(connection, 1, 3)
    asked = json.loads(connection.makefile().readline())
    child = os.fork()
    if child == 0:
        connection.close()
        run(asked, fds)
    for fd in fds:
        os.close(fd)
    lock, is_over = threading.Lock(), threading.Event()

    def hand_on():
        while True:
            number = connection.recv(1)
            with lock:
                if is_over.is_set():
                    return
                os.kill(child, number[0] if number else signal.SIGTERM)
            if not number:
                return

    threading.Thread(target=hand_on, daemon=True).start()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with lock:
        is_over.set()
    _, ended = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended))


def serve(path):
    """Attend to connections until stdin is closed."""
    for module in pkgutil.walk_packages(hookline.__path__, "hookline."):
        if module.name != "hookline.__main__":
            importlib.import_module(module.name)  # all of it, once, and not in each child
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(50)
    print("ready", flush=True)
    if os.fork() == 0:  # ends with whoever started this
        sys.stdin.read()
        os.kill(os.getppid(), signal.SIGTERM)
        os._exit(0)
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                attend(connection)
            finally:
                os._exit(0)
        connection.close()


if __name__ == "__main__":
    serve(sys.argv[1])
