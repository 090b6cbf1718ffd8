"""One run of an agent: the loop, its state, events, budget and cancellation."""
