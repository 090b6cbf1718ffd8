"""Two real HTTP servers: llama.cpp with the embedded weights, and a scripted one."""

import threading

import pytest

from hookline.providers.vendors import VENDORS

from .servers import Script

KEY = "sk-of-the-tests-0123456789"
VARIABLES = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_ORG_ID",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    *(key for vendor in VENDORS.values() for key in vendor.keys),
    *(f"{name.upper()}_BASE_URL" for name in (*VENDORS, "bedrock")),
    "AZURE_OPENAI_ENDPOINT",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_LOCATION",
    "OLLAMA_HOST",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_BEARER_TOKEN_BEDROCK",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
)


@pytest.fixture(autouse=True)
def no_keys_from_outside(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def llama():
    """The address of a llama.cpp server that requires a key."""
    xllamacpp = pytest.importorskip("xllamacpp")
    from hookline.providers.local.weights import fetch

    params = xllamacpp.CommonParams()
    params.model.path = str(fetch())
    params.n_ctx, params.n_parallel, params.cache_ram_mib = 2048, 1, 0
    params.cpuparams.n_threads, params.cpuparams_batch.n_threads = 1, 2
    params.verbosity, params.warmup = -1, False
    params.api_keys = [KEY]
    server = xllamacpp.Server(params)
    yield server.listening_address
    del server


@pytest.fixture
def script():
    server = Script()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.stopping.set()
    server.shutdown()
    server.server_close()
    thread.join()
