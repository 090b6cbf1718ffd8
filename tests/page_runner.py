"""Runs the code of pages, each in a process of its own that has Hookline imported already.

It is started as a program, by the tests of the pages. It reads one JSON object a line, `{"code": ..., "folder": ...}`,
and answers each with `{"status": ..., "output": ...}`.
"""

import json
import os
import signal
import sys
import tempfile
import traceback

import hookline

SECONDS = 100


def run(code: str, folder: str) -> dict[str, object]:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.chdir(folder)
                signal.alarm(SECONDS)  # which ends it
                exec(code, {})
                exec(code, {})
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        output.seek(0)
        return {"status": os.waitstatus_to_exitcode(ended), "output": output.read().decode(errors="replace")}


if __name__ == "__main__":
    for name in hookline.__all__:
        getattr(hookline, name)  # all of it, once, and not in each child
    import pydantic  # noqa: F401

    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(run(asked["code"], asked["folder"])), flush=True)
