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
from ..._kernel.validation import check_bool
from ..._kernel.values import Message, ModelResponse, Usage
from ...models.attachments import check_attachments
from ...models.errors import NotInstalledError, OverloadedError
from ..apis.chat_completions import ChatCompletionsApi
from ..apis.common import ParsedReply, ToolNames
from . import weights
from .choices import open_question, possible, refusal, with_answer
from .constrained_decoding import ConstrainedApi, GroundedApi, answered_parts, calls_since_asked, divided
from .llama import LlamaEngine, engine_for
from .text_calls import TextCallsApi
from .tool_choice import named_tool, planned_calls

CONTEXT, EMBEDDED_CONTEXT = 8192, 4096


class LocalModel:
    """The embedded model, or any GGUF file, in this process.

    The weights are loaded at the first request and shared by all models of the same file. The weights of the embedded
    model are downloaded once. A model whose chat template supports tools gets them that way. Any other model is shown
    examples, and a grammar lets it write only what parses.

    Args:
        path: a GGUF file; the embedded model if omitted or empty.
        context: the size of the context window in tokens, for request and reply together; if omitted, 4096 for the
            embedded model and 8192 for others.
        ground: help a very small model: choose the tool by how likely the request is for each, and allow only
            arguments that stand in the conversation. By default only for the embedded model, because a larger one
            chooses better by itself, and rightly writes values that nobody said.
        report: called during the download with the bytes downloaded so far and the total; if omitted, a terminal
            shows the progress.

    Raises:
        RegistrationError: the file does not exist or is not a GGUF file.
        NotInstalledError: the package ``xllamacpp`` is missing.

    Example::

        agent = Agent("bob", llm=LocalModel("models/qwen3-4b.gguf", context=16384))
    """

    provider = "local"
    attachment_types = ()

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        context: int | None = None,
        ground: bool | None = None,
        report: weights.Report | None = None,
    ) -> None:
        if find_spec("xllamacpp") is None:
            raise NotInstalledError("xllamacpp", "local")
        if context is None:
            context = CONTEXT if path else EMBEDDED_CONTEXT
        if not (is_number(context) and context >= 256):
            raise RegistrationError(f"context= must be a number of tokens, at least 256, not {context!r}")
        self._path = _checked_path(Path(path).expanduser()) if path else None
        self.name = weights.NAME if self._path is None else self._path.stem
        self._ground = self._path is None if ground is None else check_bool(ground, "ground")
        self._context, self._report = int(context), report or _show_progress

    @property
    def embedded(self) -> bool:
        """Whether this is the embedded model, whose weights may still have to be downloaded."""
        return self._path is None

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole reply."""
        async for piece in self.stream(request):
            if isinstance(piece, ModelResponse):
                return piece
        raise OverloadedError(f"{self.name} ended without a reply")

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Yield pieces of text, then the whole reply. Closing the generator stops the model at its next token."""
        check_attachments(self, request.messages)
        engine: LlamaEngine = await in_thread(self.load)
        names = ToolNames.from_request(request)
        decided = await self._grounded(engine, request)
        if isinstance(decided, str):
            yield decided
            yield ModelResponse(decided, (), Usage(), "stop", 0.0, self.name, self.provider)
            return
        replies = list[ParsedReply]()
        for api, part in decided or [(self._api(engine, request, names), request)]:
            if replies:
                yield " "
            async for piece in self._reply(engine, api, part, names):
                if isinstance(piece, str):
                    yield piece
                else:
                    replies.append(piece)
        calls = tuple(call.replace(name=names.decode(call.name)) for reply in replies for call in reply.tool_calls)
        text = " ".join(reply.content for reply in replies)
        usage = sum((reply.usage or Usage() for reply in replies), Usage())
        yield ModelResponse(text, calls, usage, replies[-1].finish_reason, 0.0, self.name, self.provider)

    async def _reply(
        self, engine: LlamaEngine, api: ChatCompletionsApi, request: ModelRequest, names: ToolNames
    ) -> AsyncIterator[str | ParsedReply]:
        """Yield pieces of the text of one reply, then all of it."""
        reply = api.stream()
        chunks = engine.stream(api.streamed(api.body(request, self.name, names)))
        try:
            async for chunk in chunks:
                if piece := reply.add(chunk):
                    yield piece
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]
        data = reply.whole()
        read = None if data is None else api.read(data)
        if read is None:
            raise OverloadedError(f"{self.name} stopped in the middle of a reply")
        yield read

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Return the number of tokens of a text, or of messages including the marks of the chat template."""
        engine = self.load()
        if isinstance(content, str):
            return engine.count(content)
        return self.count_request(ModelRequest(content))

    def count_request(self, request: ModelRequest) -> int:
        """Return the number of tokens in the prompt for a request, including everything made from its tools."""
        engine = self.load()
        names = ToolNames.from_request(request)
        body = self._api(engine, request, names).body(request, self.name, names)
        return engine.count(engine.prompt(body["messages"], body.get("tools")))

    def price(self, usage: Usage) -> float:
        """Return 0: the model runs locally."""
        return 0.0

    def load(self) -> LlamaEngine:
        """Load the weights now, and download them if necessary. Otherwise the first request does that.

        Raises:
            WeightsError: the weights could not be downloaded.
            UnknownModelError: llama.cpp cannot load the file.
        """
        return engine_for(self._path or weights.fetch(self._report), self._context)

    async def _grounded(
        self, engine: LlamaEngine, request: ModelRequest
    ) -> str | Sequence[tuple[ChatCompletionsApi, ModelRequest]] | None:
        """Decide which tool to call now, if any. Return ``None`` if the model itself must decide.

        The result is a question or a refusal to the user, or the requests whose replies make the reply: one for a
        call, and one for the result of each call. If the user asked for several calls, each request asks for one.
        """
        if not (self._ground and request.tools) or request.tool_choice == "none":
            return None
        request = request.replace(messages=with_answer(request.messages))
        may_ask = request.tool_choice in (None, "auto")
        last, call, parts = request.messages[-1], None, dict[str, str]()
        named = named_tool(request)
        if not may_ask and request.tool_choice != "required":
            call = request.tool_choice
        elif not may_ask or not (last.role == "tool" and last.is_error):
            done = calls_since_asked(request.messages)
            parts = {named: ""} if named is not None else await self._plan(engine, request)
            if may_ask and parts and possible(request) is not request:
                if refused := refusal(request, next(iter(parts))):
                    return refused
                parts = await self._plan(engine, possible(request))
            call = next((name for name in parts if name not in done), None)
            if call is None and not may_ask:
                call = next(iter(parts), request.tools[0].name)
        divide = len(parts) > 1
        if call is None:
            messages = answered_parts(request.messages, parts) if divide and request.response_format is None else []
            asked = [request.replace(messages=each) for each in messages] or [request]
        else:
            asked = [request.replace(messages=divided(request.messages, parts, call)) if divide else request]
            question = open_question(request, call, asked[0].messages) if may_ask else ""
            if question:
                return question
        return [(GroundedApi(each, call, engine.tokenize, show_all=named is not None), each) for each in asked]

    async def _plan(self, engine: LlamaEngine, request: ModelRequest) -> dict[str, str]:
        """Return the tools to call, each with the part of the request that is about it."""
        closed = False

        def likelihood(prompt: str, text: str) -> Sequence[float]:
            if closed:
                raise RuntimeError("the request was cancelled")
            return engine.likelihood(prompt, text)

        try:
            return dict(await in_thread(planned_calls, request, likelihood))
        finally:
            closed = True

    def _api(self, engine: LlamaEngine, request: ModelRequest, names: ToolNames) -> ChatCompletionsApi:
        """Return the API to use: the model's own tool format, or constrained decoding to force an outcome."""
        knows_tools = self._path is not None and "tools" in engine.template
        forced = request.tools and (
            request.response_format is not None or request.tool_choice not in (None, "auto", "none")
        )
        return TextCallsApi(request, names) if knows_tools and not forced else ConstrainedApi(request)


def _checked_path(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise RegistrationError(f"cannot read the model file {str(path)!r}: {error.strerror}") from error
    if begins != b"GGUF":
        raise RegistrationError(f"{str(path)!r} is not a GGUF file; llama.cpp loads only GGUF files")
    return path


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done >= total else ""
        sys.stderr.write(
            f"\rdownloading {weights.NAME}, once: {done * 100 // total:3} % of {total // 1_000_000} MB{end}"
        )
        sys.stderr.flush()
