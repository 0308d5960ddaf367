"""Pipelines: images with a prompt, as before transformers 5, and chats.

python examples/pipelines.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg

To see: a pipeline takes RUDDER's switch like any other argument of `generate`.
"""

from __future__ import annotations

import tempfile

from _common import QUESTION, arguments, load_image, settings, show
from transformers import pipeline

import rudder_hf


def main() -> None:
    given = arguments(__doc__)
    image, present = load_image(given, place=6)
    folder = tempfile.mkdtemp(prefix="rudder-settings-")
    rudder_hf.write_repo(settings(given), folder)
    options = {"max_new_tokens": given.max_new_tokens, "do_sample": False}

    # From a settings repository, with transformers alone.
    describe = pipeline("image-to-text", model=folder, trust_remote_code=True)
    vanilla = describe(image, prompt=QUESTION, generate_kwargs={**options, "rudder": False})
    steered = describe(image, prompt=QUESTION, generate_kwargs=options)
    show(present, vanilla=vanilla[0]["generated_text"], steered=steered[0]["generated_text"])

    # For a model at hand, as a chat.
    question = [{"type": "image", "image": image}, {"type": "text", "text": "Describe the image briefly"}]
    talk = rudder_hf.pipeline("image-text-to-text", describe.model)
    reply = talk(text=[{"role": "user", "content": question}], generate_kwargs=options, return_full_text=False)
    show(present, chatted=reply[0]["generated_text"])


if __name__ == "__main__":
    main()
