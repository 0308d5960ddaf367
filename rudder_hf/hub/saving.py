"""What a settings repository consists of, and saving one again without the package: `config.json` and copied code."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from ..core.configuration import RudderConfig, check_settings_folder
from ..core.version import OLDEST_TRANSFORMERS
from .loading import QUIET

MODELING_FILE, PIPELINE_FILE = "modeling_rudder.py", "pipeline_rudder.py"
GENERATE_FILE, REQUIREMENTS_FILE = "custom_generate/generate.py", "custom_generate/requirements.txt"
_MODEL_CLASS = "modeling_rudder.RudderForConditionalGeneration"
# What transformers reads in `config.json` to find the code.
CODE_KEYS: dict[str, Any] = {
    "auto_map": {
        "AutoConfig": "modeling_rudder.RudderConfig",
        "AutoModel": _MODEL_CLASS,
        "AutoModelForImageTextToText": _MODEL_CLASS,
        "AutoModelForMultimodalLM": _MODEL_CLASS,
        "AutoModelForCausalLM": "modeling_rudder.RudderInPlace",
        "AutoProcessor": "modeling_rudder.RudderProcessor",
    },
    "custom_pipelines": {
        "image-to-text": {
            "impl": "pipeline_rudder.RudderImageToTextPipeline",
            "pt": ["AutoModelForImageTextToText"],
        },
    },
}
# `transformers serve` looks the first up in transformers and loads the model with it: the base, steered in place.
_ARCHITECTURES = ["AutoModelForCausalLM", "RudderForConditionalGeneration"]


def settings_block(settings: Mapping[str, Any]) -> str:
    """Write the settings as the block of Python that ends `custom_generate/generate.py`."""
    values = "".join(f"    {name!r}: {value!r},\n" for name, value in settings.items())
    return f"\nSETTINGS = {{\n{values}}}\n"


def stored_config(config: RudderConfig, code: Mapping[str, Any], note: str | None = None) -> str:
    """Write `config.json` with the keys that lead transformers to the code, and a note on the calibration record."""
    stored = json.loads(config.to_json_string())
    if stored.get("calibration"):
        stored["calibration"].pop("note", None)
        stored["calibration"] |= {} if note is None else {"note": note}
    # A dtype would describe weights. The code is named anew: transformers puts the repository's id into these keys.
    stored = {name: value for name, value in stored.items() if name not in ("dtype", *CODE_KEYS)}
    stored |= {"architectures": _ARCHITECTURES, "transformers_needed": f">={OLDEST_TRANSFORMERS}", **code}
    return json.dumps(stored, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write texts into a folder, each in one step: no file is ever there in part."""
    written = []
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            unfinished.write_text(text, encoding="utf-8", newline="\n")
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
        written.append(path)
    return written


def save_copy(config: RudderConfig, folder: Path, source: str | None, location: Mapping[str, Any]) -> None:
    """Write `config.json` and copy the code of the repository that this file came from, with the settings in it.

    Code that is not to be had, offline for example, is left out; so is the card, which stood for the old settings.
    """
    check_settings_folder(folder)
    files = {MODELING_FILE: Path(__file__).read_text(encoding="utf-8")}
    for name in (PIPELINE_FILE, GENERATE_FILE, REQUIREMENTS_FILE) if source is not None else ():
        with suppress(OSError):
            path = cached_file(source, name, **location, **QUIET)
            files |= {} if path is None else {name: Path(path).read_text(encoding="utf-8")}
    if GENERATE_FILE in files:
        before, _, rest = files[GENERATE_FILE].partition("\nSETTINGS = {\n")
        files[GENERATE_FILE] = before + settings_block(config.settings()) + rest.partition("\n}\n")[2]
    code = {name: keys for name, keys in CODE_KEYS.items() if name == "auto_map" or PIPELINE_FILE in files}
    write_files(folder, {**files, "config.json": stored_config(config, code)})
