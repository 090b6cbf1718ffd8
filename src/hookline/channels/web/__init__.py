"""Channel that serves a chat page for web browsers."""
