"""The agent through OpenAI's own client: pip install openai.

python openai_client.py "Which version of search runs?"

HOOKLINE_URL says where the server is, if not at http://127.0.0.1:8420, and HOOKLINE_KEY is a key, where one is needed.
"""

import os
import sys

from openai import OpenAI

URL = os.environ.get("HOOKLINE_URL", "http://127.0.0.1:8420")
KEY = os.environ.get("HOOKLINE_KEY", "none-is-needed-here")


def main() -> None:
    """Ask, and show the answer as it is written."""
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
