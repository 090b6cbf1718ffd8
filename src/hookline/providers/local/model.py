"""``local`` and ``local:PATH``: a model in this process."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from ..._base.text import is_number
from ..._base.workers import in_thread
from ..._kernel.errors import RegistrationError
from ..._kernel.payloads import ModelRequest
from ..._kernel.values import Message, ModelResponse, Usage
from ...models.errors import NotInstalledError, OverloadedError
from ..dialects.chat import Chat
from ..wire import ToolNames
from . import weights
from .constrained import Constrained
from .engine import Engine, engine_for
from .recover import Recovering

CONTEXT, EMBEDDED_CONTEXT = 8192, 4096


class LocalModel:
    """The embedded model, or any GGUF file, in this process.

    The weights are loaded at the first request and shared by every model object of the same file; the embedded
    ones are fetched once. A model whose chat template knows tools is given them so; any other one is shown examples
    and can write nothing that does not parse.

    Args:
        path: a GGUF file; the embedded model if left out or empty.
        context: how many tokens request and reply may have together; 8192, of the embedded model 4096, if left out.
        report: is told, in bytes, how far the fetching of weights is; without it, a terminal shows it.

    Raises:
        RegistrationError: there is no such file, or it is no GGUF file.
        NotInstalledError: there is no llama.cpp.
    """

    provider = "local"

    def __init__(
        self, path: str | Path | None = None, *, context: int | None = None, report: weights.Report | None = None
    ) -> None:
        if find_spec("xllamacpp") is None:
            raise NotInstalledError("xllamacpp", "local")
        if context is None:
            context = CONTEXT if path else EMBEDDED_CONTEXT
        if not (is_number(context) and context >= 256):
            raise RegistrationError(f"context= is a number of tokens, 256 or more, not {context!r}")
        self._path = _checked(Path(path).expanduser()) if path else None
        self.name = weights.NAME if self._path is None else self._path.stem
        self._context, self._report = int(context), report or _show

    @property
    def embedded(self) -> bool:
        """Whether this is the embedded model, whose weights may still have to be fetched."""
        return self._path is None

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """The whole reply at once."""
        async for piece in self.stream(request):
            if isinstance(piece, ModelResponse):
                return piece
        raise OverloadedError(f"{self.name} broke off without a reply")

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Pieces of text as they are written, then the whole reply. Leaving stops the model at its next token."""
        engine: Engine = await in_thread(self.load)
        names = ToolNames.of(request)
        dialect = self._dialect(engine, request, names)
        reply = dialect.stream()
        chunks = engine.stream(dialect.streamed(dialect.body(request, self.name, names)))
        try:
            async for chunk in chunks:
                if piece := reply.add(chunk):
                    yield piece
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]
        data = reply.whole()
        read = None if data is None else dialect.read(data)
        if read is None:
            raise OverloadedError(f"{self.name} broke off in the middle of a reply")
        calls = tuple(call.replace(name=names.back(call.name)) for call in read.tool_calls)
        yield ModelResponse(
            read.content, calls, read.usage or Usage(), read.finish_reason, 0.0, self.name, self.provider
        )

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """How many tokens a text takes, or some messages with the marks of the chat template around them."""
        engine = self.load()
        if isinstance(content, str):
            return engine.count(content)
        return self.count_request(ModelRequest(content))

    def count_request(self, request: ModelRequest) -> int:
        """How many tokens of prompt the model is given for a request, all that is made of its tools included."""
        engine = self.load()
        names = ToolNames.of(request)
        body = self._dialect(engine, request, names).body(request, self.name, names)
        return engine.count(engine.prompt(body["messages"], body.get("tools")))

    def price(self, usage: Usage) -> float:
        """Nothing: it runs here."""
        return 0.0

    def load(self) -> Engine:
        """Load the weights now, fetching them if need be; else the first request does it.

        Raises:
            WeightsError: they could not be fetched.
            UnknownModelError: llama.cpp cannot load the file.
        """
        return engine_for(self._path or weights.fetch(self._report), self._context)

    def _dialect(self, engine: Engine, request: ModelRequest, names: ToolNames) -> Chat:
        """The model's own form where it is free to call or answer; only a grammar can force it to either."""
        taught = self._path is not None and "tools" in engine.template
        forced = request.tools and (
            request.response_format is not None or request.tool_choice not in (None, "auto", "none")
        )
        return Recovering(request, names) if taught and not forced else Constrained(request)


def _checked(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise RegistrationError(f"cannot read the model file {str(path)!r}: {error.strerror}") from error
    if begins != b"GGUF":
        raise RegistrationError(f"{str(path)!r} is not a GGUF file; llama.cpp can load no other kind")
    return path


def _show(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\rfetching {weights.NAME}, once: {done * 100 // total:3} % of {total // 1_000_000} MB{end}")
        sys.stderr.flush()
