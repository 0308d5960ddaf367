"""Describe images with one pipeline in several threads, as a web application of your own would.

python examples/serving/thread_pool.py photo.jpg other.jpg --model my-settings
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from transformers import pipeline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--model", required=True, help="folder or Hub id of RUDDER settings")
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=4)
    given = parser.parse_args()

    # One model in memory for all threads: what a call knows of its image travels with the call.
    describe = pipeline("image-to-text", model=given.model, trust_remote_code=True)

    def one(path: Path) -> str:
        answer = describe(str(path), max_new_tokens=given.max_new_tokens, generate_kwargs={"do_sample": False})
        return str(answer[0]["generated_text"])

    with ThreadPoolExecutor(given.threads) as pool:
        for path, answer in zip(given.images, pool.map(one, given.images), strict=True):
            print(f"{path.name}: {answer}")


if __name__ == "__main__":
    main()
