"""Ask `transformers serve` or vLLM about images, all at the same time. Needs openai and a server, see docs/serving.md.

python examples/serving/client.py photo.jpg other.jpg --model my-settings
python examples/serving/client.py photo.jpg --model my-settings --rudder false
python examples/serving/client.py photo.jpg --model my-settings --rudder '{"alpha_max": 10.0}' --stream
"""

from __future__ import annotations

import argparse
import base64
import json
import mimetypes
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openai import OpenAI

QUESTION = "Please help me describe the image in detail"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="+", type=Path, help="one request is sent for each")
    parser.add_argument("--model", required=True, help="the folder or Hub id that the server was started with")
    parser.add_argument("--base-url", default="http://localhost:8000/v1")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--rudder", type=json.loads, help="JSON: false, or settings of these requests")
    parser.add_argument("--stream", action="store_true")
    return parser.parse_args()


def as_url(path: Path) -> str:
    """An image as a data URL, so that the server needs no access to the file."""
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def page(client: OpenAI, path: str) -> bytes:
    """What the server shows beside its OpenAI interface; nothing where it has no such page."""
    try:
        with urllib.request.urlopen(str(client.base_url).removesuffix("/v1/") + path, timeout=60) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError:
        return b""


def rudder_fields(client: OpenAI, given: argparse.Namespace) -> dict[str, Any]:
    """The field of a request that carries its settings, which is another for each server.

    vLLM passes over fields that it does not know, and settings too if it runs without RUDDER: it is asked first.
    """
    if not page(client, "/version"):
        return {} if given.rudder is None else {"generation_config": json.dumps({"rudder": given.rudder})}
    if given.rudder is not False and b"vllm:rudder_requests" not in page(client, "/metrics"):
        raise SystemExit("This vLLM runs without RUDDER and would answer unsteered. If it may: --rudder false.")
    if isinstance(given.rudder, dict):
        return {"vllm_xargs": {f"rudder_{name}": value for name, value in given.rudder.items()}}
    return {} if given.rudder is None else {"vllm_xargs": {"rudder": given.rudder}}


def ask(client: OpenAI, image: Path, given: argparse.Namespace, fields: dict[str, Any]) -> str:
    """The answer to one request, which is put together from its pieces if it is streamed."""
    content = [
        {"type": "image_url", "image_url": {"url": as_url(image)}},
        {"type": "text", "text": given.question},
    ]
    options: dict[str, Any] = {"max_tokens": given.max_tokens, "temperature": 0, "stream": given.stream}
    answer: Any = client.chat.completions.create(
        model=given.model, messages=[{"role": "user", "content": content}], extra_body=fields, **options
    )
    if given.stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    return str(answer.choices[0].message.content)


def main() -> None:
    given = arguments()
    with OpenAI(base_url=given.base_url, api_key="none") as client, ThreadPoolExecutor(len(given.images)) as pool:
        fields = rudder_fields(client, given)
        answers = pool.map(lambda image: ask(client, image, given, fields), given.images)
        for image, answer in zip(given.images, answers, strict=True):
            print(f"{image.name}: {answer.strip()}")


if __name__ == "__main__":
    main()
