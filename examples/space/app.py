"""The page of `rudder demo` as a Hub Space: this folder is the Space's repository.

Set the variable RUDDER_MODEL of the Space to a Hub id; without it the embedded model is shown.
"""

import os

from rudder_hf.cli import ask as answers
from rudder_hf.cli.common import choose_device
from rudder_hf.demo.serve import serve_until_interrupted
from rudder_hf.scenes.embedded import embedded_name

name = os.environ.get("RUDDER_MODEL")
inside = embedded_name(name)
model, processor = answers.load(name, {}, choose_device("auto"), "auto")
serve_until_interrupted(
    lambda url: print(f"The page is at {url}", flush=True),
    model,
    processor,
    str(name) if inside is None else f"embedded:{inside}",
    port=None,
    eager=inside is not None,
    on_space=True,
)
