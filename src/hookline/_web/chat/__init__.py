"""The chat component: one script, style and markup, and the protocol between them and a server."""
