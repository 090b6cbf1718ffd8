"""The hook system: points, payloads, hooks, registry and dispatch. It does not depend on vendors, files or networks."""
