"""Guards in front of MCP servers: a gateway between an MCP client and its servers (DESIGN 6.23).

The host is the client, so this is an adapter: a session of the client is a run (``run.py``), whose loop judges every
call. ``gateway.py`` is the pump of messages between one client and one server, ``content.py`` translates results,
``pins.py`` keeps what was approved, ``stdio.py`` and ``http.py`` are the transports.

The pump does not use the package ``mcp``: its types would parse and print every message, and refuse what they do not
know. Here a message that no hook changes passes byte for byte, whatever the version of the protocol.
"""
