"""Messages in and out: channels, and the gateway between them and an agent."""
