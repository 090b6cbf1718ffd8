"""The table ``server`` of the settings."""

import re
from pathlib import Path

import pytest

from hookline._base.files import user_folder
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.server.options import ServerOptions


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"prot": 1}, "Did you mean 'port'"),
        ({"port": 70_000}, "server.port"),
        ({"port": -1}, "server.port"),
        ({"host": ""}, "127.0.0.1"),
        ({"hosts": ["a b"]}, "hosts"),
        ({"hosts": ["agents.example:80"]}, "leave out the port"),
        ({"hosts": "agents.example"}, "server.hosts"),
        ({"push_hosts": ["http://x"]}, "push_hosts"),
        ({"trusted_proxies": ["10.0.0.0/99"]}, "10.0.0.0/8"),
        ({"trusted_proxies": ["proxy"]}, "10.0.0.0/8"),
        ({"public_url": "agents.example"}, "https://agents.example.com"),
        ({"rate": 0}, "server.rate"),
        ({"burst": 0}, "server.burst"),
        ({"max_body": 10}, "server.max_body"),
        ({"body_seconds": 0}, "server.body_seconds"),
        ({"max_runs": 0}, "server.max_runs"),
        ({"max_queued": -1}, "server.max_queued"),
        ({"heartbeat": 0}, "server.heartbeat"),
        ({"grace": -1}, "server.grace"),
        ({"keep_days": 0}, "server.keep_days"),
        ({"logs": "jsn"}, "Did you mean 'json'"),
    ],
)
def test_an_invalid_option_is_rejected_with_advice(table, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        ServerOptions.of(table)


def test_valid_options_are_accepted():
    options = ServerOptions.of(
        {
            "host": "::1",
            "port": 0,
            "hosts": ["agents.example"],
            "trusted_proxies": ["10.0.0.1/8", "::1"],
            "public_url": "https://agents.example/x",
            "push_hosts": ["10.0.0.7", "fe80::1", "intern"],
            "max_queued": 0,
        }
    )
    assert options.port == 0
    assert options.exposed


def test_a_server_on_loopback_is_not_exposed():
    assert not ServerOptions().exposed
    assert [ServerOptions(host=host).exposed for host in ("localhost", "::1", "127.0.0.9", "0.0.0.0", "::")] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_every_option_is_described():
    described = set(re.findall(r"^        (\w+):", ServerOptions.__doc__, re.MULTILINE))
    assert described == set(ServerOptions.__struct_fields__)


@pytest.mark.parametrize(
    ("options", "runs", "keys"),
    [
        ({}, "", ""),
        ({}, "/srv/runs.db", "/srv/keys.db"),
        ({}, None, ""),
        ({}, ":memory:", ""),
        ({"keys": "/etc/k.db"}, "/srv/runs.db", "/etc/k.db"),
        ({"keys": "k.db"}, "/srv/runs.db", "/home/x/k.db"),
        ({"keys": ":memory:"}, "/srv/runs.db", ":memory:"),
    ],
)
def test_keys_are_in_the_folder_of_the_runs(options, runs, keys):
    """Without a file of runs, they are in the user's data folder."""
    runs, keys = Settings().runs if runs == "" else runs, keys or str(user_folder("data") / "keys.db")
    assert ServerOptions(**options).keys_path(runs, Path("/home/x")) == keys


def test_the_former_setting_for_the_runs_file_names_the_new_one():
    with pytest.raises(ConfigError, match=r"server\.database no longer exists: set runs, above \[server\]"):
        ServerOptions.of({"database": "server.db"})
