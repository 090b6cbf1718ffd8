"""The chat completions API of OpenAI, with agents as models."""
