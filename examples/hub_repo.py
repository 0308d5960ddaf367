"""Share settings as a repository: write it, or push it, and load it where `rudder_hf` need not be installed.

python examples/hub_repo.py --model llava-hf/llava-1.5-7b-hf

To see: a few small files without weights are enough for `AutoModel` to load a steered model. Its switch and its
settings are those of the wrapper.
"""

from __future__ import annotations

import tempfile

from _common import answers, arguments, ask, load_image, settings, show
from transformers import AutoModel, AutoProcessor

from rudder_hf import write_repo


def main() -> None:
    given = arguments(__doc__)
    image, present = load_image(given, place=3)

    # push_repo(config, "your-name/some-model-rudder", private=True) puts the same files on the Hub.
    folder = tempfile.mkdtemp(prefix="rudder-settings-")
    written = write_repo(settings(given), folder)
    size = sum(path.stat().st_size for path in written)
    names = ", ".join(str(path.relative_to(folder)) for path in sorted(written))
    print(f"{len(written)} files, {size / 1000:.0f} kB, no weights: {names}")

    # Anybody can load it, by its folder or by its id on the Hub; trust_remote_code runs the code in the repository.
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    inputs = ask(processor, [image])
    options = {"max_new_tokens": given.max_new_tokens, "do_sample": False}
    show(
        present,
        vanilla=answers(processor, inputs, model.generate(**inputs, **options, rudder=False))[0],
        steered=answers(processor, inputs, model.generate(**inputs, **options))[0],
    )

    # Settings can be changed at load, and the base model's loading arguments are passed on.
    strength = model.config.alpha_max
    softer = AutoModel.from_pretrained(folder, trust_remote_code=True, alpha_max=strength / 2, dtype="bfloat16")
    print(f"loaded again with alpha_max {softer.config.alpha_max} instead of {strength}, in {softer.dtype}")


if __name__ == "__main__":
    main()
