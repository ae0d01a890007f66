"""Stream a message through relayd with the official Anthropic SDK.

relayd mock --engine anthropic --model claude --listen 127.0.0.1:8001 &
relayd serve --worker http://127.0.0.1:8001 &
python examples/anthropic_stream.py http://127.0.0.1:8080 claude
"""

import sys

from anthropic import Anthropic


def main(base_url: str, model: str) -> None:
    client = Anthropic(base_url=base_url, api_key="unused")
    question = [{"role": "user", "content": "What does a relay do?"}]
    with client.messages.stream(model=model, max_tokens=200, messages=question) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
    print()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: anthropic_stream.py BASE_URL MODEL")
    main(*sys.argv[1:])
