"""llama.cpp in this process: one engine for each file of weights, shared by all models that use it."""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
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

_engines: dict[tuple[Path, int], LlamaEngine] = {}
_lock = threading.Lock()
_inherited: list[LlamaEngine] = []
_active_calls: set[threading.Event] = set()
_exit_lock = threading.Lock()
_exiting = False
_EXIT_WAIT = 30.0
"""Seconds to wait for llama.cpp at exit. It can be stopped after each token or batch."""

_MAX_LIKELIHOODS = 512


@contextmanager
def _llama_call() -> Iterator[None]:
    """Mark a call into llama.cpp, so that the exit of the program waits for it. No call starts during the exit.

    Raises:
        RuntimeError: the program is ending.
    """
    done = threading.Event()
    with _exit_lock:
        if _exiting:
            raise RuntimeError("the program is ending")
        _active_calls.add(done)
    try:
        yield
    finally:
        _active_calls.discard(done)
        done.set()


@atexit.register
def _wait_for_calls() -> None:
    """Wait for calls at exit: Python unwinds running threads, and one inside llama.cpp would abort the process."""
    global _exiting
    with _exit_lock:
        _exiting = True
        calls = list(_active_calls)
    for done in calls:
        done.wait(_EXIT_WAIT)


def _after_fork() -> None:
    """Forget the inherited engines, so that a forked process loads its own.

    The threads of llama.cpp do not survive a fork, and freeing an engine waits for them. So the inherited engines are
    kept until the process exits. It must exit with ``os._exit()``, as the children of multiprocessing do.
    """
    global _lock, _exit_lock
    _inherited.extend(_engines.values())
    _engines.clear()
    _active_calls.clear()
    _lock, _exit_lock = threading.Lock(), threading.Lock()


after_fork_in_child(_after_fork)


def engine_for(path: Path, context: int) -> LlamaEngine:
    """Return the engine for these weights, and load them the first time.

    Raises:
        UnknownModelError: llama.cpp cannot load the file.
        NotInstalledError: the package ``xllamacpp`` is missing.
    """
    key = (path.resolve(), context)
    with _lock:
        if key not in _engines:
            _engines[key] = LlamaEngine(*key)
        return _engines[key]


def threads() -> tuple[int, int]:
    """Return the number of threads for generation and the number of threads for prompt processing.

    Generation waits for its slowest thread at every layer. On a small machine that does anything else, a second thread
    makes it several times slower. Prompt processing works in batches and gains from every core.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(4, max(1, cores // 2)), min(8, cores)


class LlamaEngine:
    """One loaded model. Several threads may use it; requests are processed one at a time."""

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
        params.n_batch = params.n_ubatch = 64 * threads()[1]  # a request can be cancelled only between batches
        params.cache_ram_mib, params.warmup, params.verbosity, params.ui = 0, False, -1, False
        self._likelihoods: dict[tuple[str, str], tuple[float, ...]] = {}
        self._key = secrets.token_urlsafe()
        params.api_keys = [self._key]  # the server also listens on loopback, where other users could find it
        try:
            with _llama_call():
                self._server: Any = self._xllamacpp.Server(params)
        except RuntimeError as error:
            raise UnknownModelError(
                f"llama.cpp cannot load {path}: the file is incomplete, llama.cpp does not support the model,"
                f" or a context of {context:,} tokens is too large for the model or for this machine"
            ) from error
        self.template: str = self._post("/props", None).get("chat_template", "")

    def grammar(self, schema: Mapping[str, Any]) -> str:
        """Return a grammar that lets the model write only what a schema allows.

        Raises:
            BadRequestError: the schema cannot be converted.
        """
        try:
            return str(self._xllamacpp.json_schema_to_grammar(msgspec.json.encode(schema).decode()))
        except (RuntimeError, ValueError) as error:
            raise BadRequestError(f"llama.cpp cannot make a grammar of this JSON schema: {error}") from error

    async def stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of a chat completion. Closing the generator stops the model at its next token.

        Raises:
            ContextOverflowError: the request is longer than the context.
            BadRequestError: llama.cpp rejects the request for another reason.
        """
        loop, chunks = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()
        closed = False

        def take(chunk: Any) -> bool:
            try:
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            except RuntimeError:
                return True  # the reader's loop is closed
            return closed or _exiting

        def generate() -> None:
            try:
                asked = self._constrained(body)
                with _llama_call():
                    self._server.handle_chat_completions(asked, take)
            except Exception as error:  # noqa: BLE001 - the reader of the stream gets it
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
            closed = True
            work.cancel()

    def _constrained(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request with a grammar instead of a schema. Progress reports make it possible to cancel it."""
        made = dict(thaw(body), return_progress=True)
        shape = made.get("response_format")
        if isinstance(shape, dict) and shape.get("type") == "json_schema":
            del made["response_format"]
            made["grammar"] = self.grammar(shape["json_schema"]["schema"])
        return made

    def likelihood(self, prompt: str, text: str) -> tuple[float, ...]:
        """Return the log-likelihood of each word of ``text`` after a prompt and a space. Results are cached.

        The words of ``text`` are separated by single spaces.
        """
        key = (prompt, text)
        if key not in self._likelihoods:
            (tokens,) = self.tokenize([" " + text])
            forced = "root ::= " + " ".join(f"<[{token}]>" for token in tokens)
            asked = {"prompt": prompt, "n_predict": len(tokens), "n_probs": 1, "temperature": 0.0, "grammar": forced}
            replies: list[dict[str, Any]] = []

            def take(reply: dict[str, Any]) -> bool:
                replies.append(reply)
                return _exiting

            with _llama_call():
                self._server.handle_completions(asked, take)
            if "error" in replies[-1]:
                raise _failure(replies[-1]["error"])
            words: list[float] = []
            for token in replies[-1]["choices"][0]["logprobs"]["content"]:
                if bytes(token["bytes"][:1]) == b" ":
                    words.append(0.0)
                words[-1] += token["logprob"]
            self._likelihoods[key] = tuple(words)
            if len(self._likelihoods) > _MAX_LIKELIHOODS:
                self._likelihoods.pop(next(iter(self._likelihoods)), None)
        return self._likelihoods[key]

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text."""
        content = [part for text in texts for part in (text, 0)]  # token 0 ends every text
        found: list[list[int]] = [[]]
        for token in self._post("/tokenize", {"content": content, "parse_special": False})["tokens"]:
            if token:
                found[-1].append(token)
            else:
                found.append([])
        return found[:-1]

    def count(self, text: str) -> int:
        """Return the number of tokens of a text, with template marks as special tokens."""
        return len(self._post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"])

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
        """Return the prompt for these messages, and for tools if the template supports them."""
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
            raise ModelError(f"llama.cpp does not respond at {path}: {error}") from error
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
            f"the request is too long for the local model: {limit}; shorten it, or use a larger context (--context)"
        )
    return BadRequestError(f"the local model rejected the request: {message}", status=error.get("code"))
