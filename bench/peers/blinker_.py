"""blinker: a signal with n receivers."""

from blinker import Signal


def dispatchers():
    def connected(make_receiver, n):
        signal, receivers = Signal(), [make_receiver() for _ in range(n)]
        for receiver in receivers:
            signal.connect(receiver)
        return signal, receivers  # which a signal itself does not keep alive

    def sync_receiver():
        return lambda sender, event=None: None

    def async_receiver():
        async def receive(sender, event=None):
            pass

        return receive

    def sync(n):
        signal, kept = connected(sync_receiver, n)
        return lambda kept=kept: signal.send(None, event=1)

    def asynchronous(n):
        signal, kept = connected(async_receiver, n)
        return lambda kept=kept: signal.send_async(None, event=1)

    return {"blinker, send": (False, sync), "blinker, send_async": (True, asynchronous)}
