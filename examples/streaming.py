"""Print a steered answer while it is written.

python examples/streaming.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg
"""

from __future__ import annotations

import threading

from _common import arguments, ask, load_image, settings
from transformers import AutoProcessor, TextIteratorStreamer

from rudder_hf import RudderForConditionalGeneration


def main() -> None:
    given = arguments(__doc__)
    model = RudderForConditionalGeneration.from_base(given.model, settings(given))
    processor = AutoProcessor.from_pretrained(given.model)
    inputs = ask(processor, [load_image(given)])

    streamer = TextIteratorStreamer(processor.tokenizer, skip_prompt=True, skip_special_tokens=True)
    options = {**inputs, "max_new_tokens": given.max_new_tokens, "do_sample": False, "streamer": streamer}
    writer = threading.Thread(target=model.generate, kwargs=options)
    writer.start()
    for text in streamer:
        print(text, end="", flush=True)
    print()
    writer.join()


if __name__ == "__main__":
    main()
