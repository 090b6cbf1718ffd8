"""llama.cpp in this process: one engine for each file of weights, shared by everybody who uses it."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import secrets
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..._base.frozen import thaw
from ..._base.workers import after_fork_in_child, in_thread
from ..._kernel.errors import ModelError
from ...models.errors import BadRequestError, ContextOverflowError, NotInstalledError, UnknownModelError

_engines: dict[tuple[Path, int], Engine] = {}
_lock = threading.Lock()
_forked = False
_inside: set[threading.Event] = set()
_door = threading.Lock()
_leaving = False
_FAREWELL = 30.0
"""How many seconds the end of the program waits for llama.cpp; it looks up after each token or batch."""


@contextmanager
def _in_llama() -> Iterator[None]:
    """A call into llama.cpp, which the end of the program has to wait for; after that has begun, nobody gets in.

    Raises:
        RuntimeError: the program ends.
    """
    out = threading.Event()
    with _door:
        if _leaving:
            raise RuntimeError("the program ends")
        _inside.add(out)
    try:
        yield
    finally:
        _inside.discard(out)
        out.set()


@atexit.register
def _let_out() -> None:
    """Python unwinds the threads that still run when it ends, and one inside of llama.cpp would abort the process."""
    global _leaving
    with _door:
        _leaving = True
        inside = list(_inside)
    for out in inside:
        out.wait(_FAREWELL)


def _after_fork() -> None:
    """The threads of llama.cpp do not survive a fork; whatever waits for them at the end hangs or crashes.

    So no engine is ever closed in such a process, and it exits without llama.cpp's own farewell.
    """
    global _lock, _door, _forked
    for engine in _engines.values():
        _keep_for_good(engine._server)
    if _engines:
        _forked = True
        libc = ctypes.CDLL(None)
        if hasattr(libc, "on_exit"):  # not everywhere
            libc.on_exit(libc._exit, None)
    _engines.clear()
    _inside.clear()
    _lock, _door = threading.Lock(), threading.Lock()


def _keep_for_good(server: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


after_fork_in_child(_after_fork)


def engine_for(path: Path, context: int) -> Engine:
    """The engine for these weights; they are loaded the first time.

    Raises:
        UnknownModelError: the file is no model that llama.cpp can load.
        NotInstalledError: there is no llama.cpp.
    """
    key = (path.resolve(), context)
    with _lock:
        if key not in _engines:
            _engines[key] = Engine(*key)
        return _engines[key]


def threads() -> tuple[int, int]:
    """How many threads write tokens, and how many read prompts.

    Writing waits for its slowest thread at every layer, so on a small machine that does anything else,
    a second thread makes it several times slower; reading in batches gains from every core.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, max(1, cores // 2)), min(8, cores)


class Engine:
    """One loaded model. Safe to use from several threads: requests wait for one another."""

    def __init__(self, path: Path, context: int) -> None:
        try:
            import xllamacpp  # type: ignore[import-untyped]
        except ImportError:
            raise NotInstalledError("xllamacpp", "local") from None
        self._xllamacpp: Any = xllamacpp
        params = self._xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel = context, 1
        params.cpuparams.n_threads, params.cpuparams_batch.n_threads = threads()
        params.n_batch = params.n_ubatch = 64 * threads()[1]  # a request can be cancelled between two batches
        params.cache_ram_mib, params.warmup, params.verbosity, params.ui = 0, False, -1, False
        self._key = secrets.token_urlsafe()
        params.api_keys = [self._key]  # it also listens on loopback, where others could find it
        try:
            with _in_llama():
                self._server: Any = self._xllamacpp.Server(params)
        except RuntimeError as error:
            raise UnknownModelError(
                f"{path} cannot be loaded: it is no whole GGUF file, a kind of model that llama.cpp does not know,"
                f" or a context of {context:,} tokens is too large for it or for this machine"
            ) from error
        if _forked:
            _keep_for_good(self._server)
        self.template: str = self._post("/props", None).get("chat_template", "")

    def grammar(self, schema: Mapping[str, Any]) -> str:
        """A grammar that lets the model write only what the schema allows.

        Raises:
            BadRequestError: the schema cannot be made one.
        """
        try:
            return str(self._xllamacpp.json_schema_to_grammar(msgspec.json.encode(schema).decode()))
        except (RuntimeError, ValueError) as error:
            raise BadRequestError(f"this JSON schema cannot constrain a model: {error}") from error

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a chat completion as they come; leaving the iterator stops the model at its next token.

        Raises:
            ContextOverflowError: the request is longer than the context.
            BadRequestError: anything else that llama.cpp refuses.
        """
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()
        left = False

        def take(chunk: Any) -> bool:
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:
                return True  # the reader's loop is closed
            return left or _leaving

        def generate() -> None:
            try:
                asked = self._constrained(body)
                with _in_llama():
                    self._server.handle_chat_completions(asked, take)
            except Exception as error:  # noqa: BLE001 - it is for whoever reads
                take({"error": {"message": str(error)}})
            finally:
                take(None)

        work = asyncio.ensure_future(in_thread(generate))
        try:
            while (chunk := await chunks.get()) is not None:
                if "error" in chunk:
                    raise _failure(chunk["error"])
                yield chunk
        finally:
            left = True
            work.cancel()

    def _constrained(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request with a grammar in place of a schema, and with reports that it can be cancelled at."""
        made = dict(thaw(body), return_progress=True)
        shape = made.get("response_format")
        if isinstance(shape, dict) and shape.get("type") == "json_schema":
            del made["response_format"]
            made["grammar"] = self.grammar(shape["json_schema"]["schema"])
        return made

    def count(self, text: str) -> int:
        """How many tokens a text takes, template marks counted as what they are."""
        return len(self._post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"])

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        """The messages, and tools where its template knows them, as one text, as the model reads them."""
        return str(
            self._post("/apply-template", {"messages": messages, **({"tools": tools} if tools else {})})["prompt"]
        )

    def _post(self, path: str, body: Any) -> dict[str, Any]:
        address = urlsplit(self._server.listening_address)
        connection = HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=30)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        try:
            method, content = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
            connection.request(method, path, content, headers)
            reply: dict[str, Any] = msgspec.json.decode(connection.getresponse().read())
        except (OSError, HTTPException, msgspec.DecodeError) as error:
            raise ModelError(f"llama.cpp does not answer at {path}: {error}") from error
        finally:
            connection.close()
        if "error" in reply:
            raise _failure(reply["error"])
        return reply


def _failure(error: Mapping[str, Any]) -> ModelError:
    message = str(error.get("message", "llama.cpp failed"))
    if error.get("type") == "exceed_context_size_error":
        limit = f"{error.get('n_prompt_tokens')} tokens do not fit into the context of {error.get('n_ctx')}"
        return ContextOverflowError(
            f"the request is too long for the local model: {limit}; send less, or give it a larger context (--context)"
        )
    return BadRequestError(f"the local model refuses the request: {message}", status=error.get("code"))
