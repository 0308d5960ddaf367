"""`import rudder_hf`: the public names and nothing else, at the price of transformers' Auto classes."""

from __future__ import annotations

import json
import subprocess
import sys

import rudder_hf

AUTO = """from transformers import (
    AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoProcessor,
    AutoTokenizer, GenerationMixin, PreTrainedModel,
)
"""


def test_dir_shows_the_public_names_only() -> None:
    assert dir(rudder_hf) == sorted(rudder_hf.__all__)
    for name in rudder_hf.__all__:
        assert getattr(rudder_hf, name) is not None


def modules_after(code: str) -> set[str]:
    code += "import json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_import_loads_nothing_beyond_the_auto_classes() -> None:
    """The classes that a model needs in any case are counted with them."""
    more = modules_after("import rudder_hf\n") - modules_after(AUTO)
    assert {name for name in more if name.split(".")[0] != "rudder_hf"} == set()
    folders = {name.split(".")[1] for name in more if name.count(".")}
    assert folders == {"core", "hub"}
