"""Steer a stock model for single calls, by the name of a settings repository. Nothing stays on the model.

python examples/custom_generate.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg
"""

from __future__ import annotations

import tempfile

from _common import answers, arguments, ask, load_image, settings
from transformers import AutoModelForImageTextToText, AutoProcessor

from rudder_hf import write_repo


def main() -> None:
    given = arguments(__doc__)
    repo = tempfile.mkdtemp(prefix="rudder-settings-")  # or "org/name" on the Hub
    write_repo(settings(given), repo)

    model = AutoModelForImageTextToText.from_pretrained(given.model)
    processor = AutoProcessor.from_pretrained(given.model)
    inputs = ask(processor, [load_image(given)])
    options = {"max_new_tokens": given.max_new_tokens, "do_sample": False}

    steered = model.generate(**inputs, **options, custom_generate=repo, trust_remote_code=True)
    stronger = model.generate(
        **inputs, **options, custom_generate=repo, trust_remote_code=True, rudder={"mode": "add"}
    )
    vanilla = model.generate(**inputs, **options)
    for name, output in (("vanilla", vanilla), ("steered", steered), ("without gate", stronger)):
        print(f"{name}:", answers(processor, inputs, output)[0])


if __name__ == "__main__":
    main()
