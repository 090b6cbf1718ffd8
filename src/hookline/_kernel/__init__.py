"""The hook system: points, payloads, hooks, registry and dispatch. It knows no vendors, files or networks."""
