"""The model under evaluation: a stock model, its processor, and RUDDER's settings for it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedConfig, PreTrainedModel

from ..core.configuration import RudderConfig
from ..presets import get_preset
from ..scenes import embedded

_WHOLE_FILE = 64 << 20  # bytes up to which a weight file is hashed whole


@dataclass(frozen=True)
class Subject:
    """A model under evaluation.

    Attributes:
        name: Hub id or folder, or "embedded".
        model: The stock model.
        processor: Its processor.
        settings: RUDDER's settings for a method's name; under "" those of methods without settings of their own.
        revision: Commit of the base model, or a hash of its files.
    """

    name: str
    model: PreTrainedModel
    processor: Any
    settings: dict[str, RudderConfig]
    revision: str

    def settings_for(self, method: str) -> RudderConfig | None:
        """RUDDER's settings for a method, if there are any."""
        return self.settings.get(method, self.settings.get(""))

    def record(self) -> dict[str, Any]:
        """What a result says about the model."""
        return {
            "name": self.name,
            "revision": self.revision,
            "class": type(self.model).__name__,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "generation_config": _generation_options(self.model),
        }


def _generation_options(model: PreTrainedModel) -> dict[str, Any]:
    """What the model itself changes about generation, beside the options of sampling, which decoding sets."""
    options: dict[str, Any] = model.generation_config.to_diff_dict()  # type: ignore[union-attr]
    left_out = ("transformers_version", "do_sample", "temperature", "top_p", "top_k", "num_beams", "max_new_tokens")
    return {name: value for name, value in sorted(options.items()) if name not in left_out and name[0] != "_"}


def load_subject(
    name: str | None, dtype: str = "auto", device: str = "cpu", rudder: str | None = None, revision: str | None = None
) -> Subject:
    """Load a model for evaluation.

    Args:
        name: Hub id or folder of a base model, or of RUDDER settings, which name their base; None or
            "embedded" is the embedded one, "embedded:NAME" another of these.
        dtype: Type of the weights.
        device: Where the model goes.
        rudder: Folder or Hub id of RUDDER settings to use instead of the model's own or its preset.
        revision: Commit, tag or branch of `name`.

    Raises:
        ValueError: The model or the settings cannot be loaded.
    """
    settings: dict[str, RudderConfig] = {}
    inside = embedded.embedded_name(name)
    if name is None or inside is not None:
        source = str(embedded.folder(inside or embedded.DEFAULT))
        settings = embedded.settings_for_methods(inside or embedded.DEFAULT)
        name = name or "embedded"
    else:
        source = name
        stored = _config(name, revision)
        if stored.get("model_type") == RudderConfig.model_type:
            config = RudderConfig.from_dict(stored)
            settings[""] = config
            if config.base_model_name_or_path is None:
                raise ValueError(f"The RUDDER settings in {name!r} do not name a base model: pass it as the model.")
            source, revision = config.base_model_name_or_path, config.base_model_revision
    if rudder is not None:
        stored = _config(rudder, None)
        if stored.get("model_type") != RudderConfig.model_type:
            raise ValueError(f"{rudder!r} holds a {stored.get('model_type')!r} model, not RUDDER settings.")
        settings = {"": RudderConfig.from_dict(stored)}
    if not settings:
        # Methods that need settings say so when they are made.
        with suppress(ValueError):
            settings[""] = get_preset(source).config()
    try:
        model = AutoModelForImageTextToText.from_pretrained(source, dtype=dtype, revision=revision or "main")
        processor = AutoProcessor.from_pretrained(source, revision=revision or "main")
    except OSError as error:
        raise ValueError(f"Cannot load {source!r}: {_first_line(error)}") from error
    model = model.to(device).eval()
    return Subject(name, model, processor, settings, base_revision(model, source))


def _config(name: str, revision: str | None) -> dict[str, Any]:
    try:
        stored, _ = PreTrainedConfig.get_config_dict(name, revision=revision or "main")
    except OSError as error:
        raise ValueError(f"Cannot load {name!r}: {_first_line(error)}") from error
    if not stored:
        raise ValueError(f"Cannot load {name!r}: there is no config.json in it.")
    return dict(stored)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def base_revision(model: PreTrainedModel, source: str) -> str:
    """The commit that the model was loaded from; for a folder a hash of what is in it."""
    commit = getattr(model.config, "_commit_hash", None)
    if commit and not Path(source).is_dir():
        return str(commit)
    if not Path(source).is_dir():
        return "unknown"
    digest = hashlib.sha256()
    for path in sorted(Path(source).glob("*")):
        if path.suffix in (".safetensors", ".json", ".bin") and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name}\n{size}\n".encode())
            with path.open("rb") as file:
                # Weights of gigabytes are told by their head, which has names and shapes, and by their end.
                digest.update(file.read(_WHOLE_FILE))
                if size > 2 * _WHOLE_FILE:
                    file.seek(-(1 << 20), 2)
                    digest.update(file.read())
    return f"files-sha256:{digest.hexdigest()[:16]}"
