"""A background job that reports a quarter of its work, and never ends."""

import os
import time
from pathlib import Path

from hookline.server.jobs import serve_job


def work(given, progress):
    Path(f"{given.get('path', given.get('rules'))}.pid").write_text(str(os.getpid()))
    progress(1, 4)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    serve_job(work)
