"""Pipelines: images with a prompt, as before transformers 5, and chats.

python examples/pipelines.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg
"""

from __future__ import annotations

import tempfile

from _common import QUESTION, arguments, load_image, settings
from transformers import pipeline

import rudder_hf


def main() -> None:
    given = arguments(__doc__)
    image = load_image(given)
    folder = tempfile.mkdtemp(prefix="rudder-settings-")
    rudder_hf.write_repo(settings(given), folder)

    # From a settings repository, with transformers alone.
    describe = pipeline("image-to-text", model=folder, trust_remote_code=True)
    print("described:", describe(image, max_new_tokens=given.max_new_tokens)[0]["generated_text"])
    several = describe([image, image.rotate(90)], prompt="What is this?", batch_size=2, max_new_tokens=4)
    print("answered: ", [result[0]["generated_text"] for result in several])

    # For a model at hand.
    chat = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": QUESTION}]}]
    talk = rudder_hf.pipeline("image-text-to-text", describe.model)
    reply = talk(text=chat, max_new_tokens=given.max_new_tokens, return_full_text=False)
    print("chatted:  ", reply[0]["generated_text"].strip())


if __name__ == "__main__":
    main()
