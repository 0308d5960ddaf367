"""Steer a stock model for single calls, by the name of a settings repository. Nothing stays on the model.

python examples/custom_generate.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg

To see: the same stock model answers with RUDDER, with RUDDER-Add (no gate), and, called last, as if nothing had been.
"""

from __future__ import annotations

import tempfile

from _common import answers, arguments, ask, load_image, settings, show
from transformers import AutoModelForImageTextToText, AutoProcessor

from rudder_hf import write_repo


def main() -> None:
    given = arguments(__doc__)
    image, present = load_image(given, place=2)
    repo = tempfile.mkdtemp(prefix="rudder-settings-")  # or "org/name" on the Hub
    write_repo(settings(given), repo)

    model = AutoModelForImageTextToText.from_pretrained(given.model)
    processor = AutoProcessor.from_pretrained(given.model)
    inputs = ask(processor, [image])
    options = {"max_new_tokens": given.max_new_tokens, "do_sample": False}
    rudder = {"custom_generate": repo, "trust_remote_code": True}

    steered = model.generate(**inputs, **options, **rudder)
    added = model.generate(**inputs, **options, **rudder, rudder={"mode": "add"})
    vanilla = model.generate(**inputs, **options)
    outputs = {"vanilla": vanilla, "steered": steered, "added": added}
    show(present, **{name: answers(processor, inputs, output)[0] for name, output in outputs.items()})


if __name__ == "__main__":
    main()
