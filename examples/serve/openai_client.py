"""Call the agent with the official OpenAI client: pip install openai.

python openai_client.py "Which version of search runs?"

Set HOOKLINE_URL if the server is not at http://127.0.0.1:8420, and HOOKLINE_KEY if it needs a key.
"""

import os
import sys

from openai import OpenAI

URL = os.environ.get("HOOKLINE_URL", "http://127.0.0.1:8420")
KEY = os.environ.get("HOOKLINE_KEY", "none-is-needed-here")


def main() -> None:
    """Send a task and print the reply while it is written."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)
    model = next(iter(client.models.list())).id
    task = " ".join(sys.argv[1:]) or "Which version of search runs?"
    stream = client.chat.completions.create(model=model, messages=[{"role": "user", "content": task}], stream=True)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
