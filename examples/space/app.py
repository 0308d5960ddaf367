"""The page of `rudder demo` as a Hub Space: this folder is the Space's repository.

Set the variable RUDDER_MODEL of the Space to a Hub id; without it the embedded model is shown.
"""

import os

from rudder_hf.cli.common import choose_device
from rudder_hf.demo.serve import serve_until_interrupted
from rudder_hf.runtime.models import load_steered

name = os.environ.get("RUDDER_MODEL")
model, processor = load_steered(name, {}, choose_device("auto"))
serve_until_interrupted(lambda url: print(f"The page is at {url}", flush=True), model, processor, name, on_space=True)
