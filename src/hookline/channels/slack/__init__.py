"""Channel that exchanges messages with people on Slack."""
