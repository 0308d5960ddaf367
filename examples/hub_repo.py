"""Share settings as a repository: write it, or push it, and load it where `rudder_hf` need not be installed.

python examples/hub_repo.py --model llava-hf/llava-1.5-7b-hf
"""

from __future__ import annotations

import tempfile

from _common import answers, arguments, ask, load_image, settings
from transformers import AutoModel, AutoProcessor

from rudder_hf import write_repo


def main() -> None:
    given = arguments(__doc__)
    config = settings(given)
    config.calibration = {"source": "example", "detail": "not calibrated on anything"}

    # push_repo(config, "your-name/some-model-rudder", private=True) puts the same files on the Hub.
    folder = tempfile.mkdtemp(prefix="rudder-settings-")
    written = write_repo(config, folder)
    size = sum(path.stat().st_size for path in written)
    names = ", ".join(str(path.relative_to(folder)) for path in sorted(written))
    print(f"{len(written)} files, {size / 1000:.0f} kB, no weights: {names}")

    # Anybody can load it, by its folder or by its id on the Hub; trust_remote_code runs the code in the repository.
    model = AutoModel.from_pretrained(folder, trust_remote_code=True)
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    inputs = ask(processor, [load_image(given)])
    output = model.generate(**inputs, max_new_tokens=given.max_new_tokens, do_sample=False)
    print("steered:", answers(processor, inputs, output)[0])

    # Settings can be overridden at load, and the base's loading arguments are passed on.
    softer = AutoModel.from_pretrained(
        folder, trust_remote_code=True, alpha_max=config.alpha_max / 2, dtype="bfloat16"
    )
    print("override:", softer.config.alpha_max, softer.dtype)


if __name__ == "__main__":
    main()
