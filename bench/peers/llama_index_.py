"""LlamaIndex: event handlers of an instrumentation dispatcher."""

from llama_index.core.instrumentation.dispatcher import Dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent


class Handler(BaseEventHandler):
    @classmethod
    def class_name(cls):
        return "Handler"

    def handle(self, event, **kwargs):
        pass

    async def ahandle(self, event, **kwargs):
        pass


def dispatchers():
    event = BaseEvent()

    def made(n):
        return Dispatcher(name="bench", event_handlers=[Handler() for _ in range(n)], propagate=False)

    def sync(n):
        dispatcher = made(n)
        return lambda: dispatcher.event(event)

    def asynchronous(n):
        dispatcher = made(n)
        return lambda: dispatcher.aevent(event)

    return {"llama-index, event": (False, sync), "llama-index, aevent": (True, asynchronous)}
