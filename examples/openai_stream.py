"""Stream a chat answer through relayd with the official OpenAI SDK.

relayd mock --model llama --listen 127.0.0.1:8001 &
relayd serve --worker http://127.0.0.1:8001 &
python examples/openai_stream.py http://127.0.0.1:8080/v1 llama
"""

import sys

from openai import OpenAI


def main(base_url: str, model: str) -> None:
    client = OpenAI(base_url=base_url, api_key="unused")
    question = [{"role": "user", "content": "What does a relay do?"}]
    for chunk in client.chat.completions.create(model=model, messages=question, stream=True):
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: openai_stream.py BASE_URL MODEL")
    main(*sys.argv[1:])
