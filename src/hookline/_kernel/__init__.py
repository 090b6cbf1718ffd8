"""The hook system itself: points, payloads, results, hooks, registry, dispatch."""
