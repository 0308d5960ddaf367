"""Print answers while they are written.

python examples/streaming.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg

To see: a streamer gets RUDDER's words one by one, as it gets the original model's.
"""

from __future__ import annotations

import threading

from _common import arguments, ask, load_image, settings
from transformers import AutoProcessor, TextIteratorStreamer

from rudder_hf import RudderForConditionalGeneration


def main() -> None:
    given = arguments(__doc__)
    image, _ = load_image(given, place=7)
    model = RudderForConditionalGeneration.from_base(given.model, settings(given))
    processor = AutoProcessor.from_pretrained(given.model)
    inputs = ask(processor, [image])

    for name, switch in (("vanilla", False), ("steered", None)):
        print(f"{name}: ", end="")
        streamer = TextIteratorStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
        options = {"max_new_tokens": given.max_new_tokens, "do_sample": False, "streamer": streamer, "rudder": switch}
        writer = threading.Thread(target=model.generate, kwargs={**inputs, **options})
        writer.start()
        for text in streamer:
            print(text, end="", flush=True)
        print()
        writer.join()


if __name__ == "__main__":
    main()
