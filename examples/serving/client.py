"""Ask a server about images, all at the same time. Needs openai and a server, see README.md beside this file.

python examples/serving/client.py photo.jpg other.jpg --model my-settings
python examples/serving/client.py photo.jpg --model my-settings --rudder false
python examples/serving/client.py photo.jpg --model my-settings --rudder '{"alpha_max": 10.0}' --stream
"""

from __future__ import annotations

import argparse
import base64
import json
import mimetypes
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


def ask(client: OpenAI, image: Path, given: argparse.Namespace) -> str:
    """The answer to one request, which is put together from its pieces if it is streamed."""
    content = [
        {"type": "image_url", "image_url": {"url": as_url(image)}},
        {"type": "text", "text": given.question},
    ]
    options: dict[str, Any] = {"max_tokens": given.max_tokens, "temperature": 0, "stream": given.stream}
    if given.rudder is not None:
        # A field that transformers serve hands to `generate`; what it does not know itself, it refuses.
        options["extra_body"] = {"generation_config": json.dumps({"rudder": given.rudder})}
    answer: Any = client.chat.completions.create(
        model=given.model, messages=[{"role": "user", "content": content}], **options
    )
    if given.stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    return str(answer.choices[0].message.content)


def main() -> None:
    given = arguments()
    with OpenAI(base_url=given.base_url, api_key="none") as client, ThreadPoolExecutor(len(given.images)) as pool:
        answers = pool.map(lambda image: ask(client, image, given), given.images)
        for image, answer in zip(given.images, answers, strict=True):
            print(f"{image.name}: {answer}")


if __name__ == "__main__":
    main()
