"""The folder of a test run, and the PostgreSQL server in it, go away with the process that made them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.environment import with_source
from tests.postgres_cluster import MISSING, Cluster
from tests.waiting import block_until

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

PROGRAM = """
from tests.postgres_cluster import Cluster
cluster = Cluster()
print(cluster.folder, cluster.pid, flush=True)
input()
"""


def is_running(pid):
    return Path(f"/proc/{pid}").exists()


def test_a_killed_process_leaves_neither_its_server_nor_its_folder():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=with_source(), text=True, **pipes) as program:
        folder, pid = program.stdout.readline().split()
        assert is_running(pid)
        assert os.path.exists(f"{folder}/data")
        program.kill()
    block_until(lambda: not is_running(pid) and not os.path.exists(os.path.dirname(folder)))


def test_a_removed_cluster_leaves_neither_its_server_nor_its_folder():
    cluster = Cluster()
    pid = cluster.pid
    cluster.remove()
    assert not is_running(pid)
    assert not os.path.exists(os.path.dirname(cluster.folder))


def test_a_server_that_other_tests_use_is_not_stopped(cluster):
    with pytest.raises(RuntimeError, match="other tests use this server"):
        cluster.restart()
    again = Cluster(os.path.dirname(cluster.folder))
    assert again.pid == cluster.pid
    again.remove()
    assert is_running(cluster.pid)
