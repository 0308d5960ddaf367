"""Load the model under evaluation: a stock model, its processor, and RUDDER's settings for it."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..core.configuration import RudderConfig
from ..core.settings import check_setting
from ..hub.loading import LoadArguments, check_named_base, load_base, load_processor, read_settings
from ..hub.modeling import RudderForConditionalGeneration
from ..presets import get_preset
from ..scenes import embedded
from .environment import files_digest


@dataclass(frozen=True)
class LoadedModel:
    """A model under evaluation."""

    name: str  # Hub id or folder, or "embedded"
    model: PreTrainedModel  # The stock model
    processor: Any  # Its processor
    # RUDDER's settings for a method's name; under "" those of methods without settings of their own
    settings: dict[str, RudderConfig]
    revision: str  # Commit of the base model, or a hash of its files

    def settings_for(self, method: str) -> RudderConfig | None:
        """Return RUDDER's settings for a method, if there are any."""
        return self.settings.get(method, self.settings.get(""))

    def config_with(self, given: dict[str, Any]) -> RudderConfig:
        """Return RUDDER's settings for the model, with the given ones on top.

        Raises:
            ValueError: There are none, or a given one is unknown or out of range.
        """
        stored = self.settings_for("rudder-beta")
        if stored is None and not {"layer", "alpha_max"} <= set(given):
            raise ValueError(
                f"There are no RUDDER settings for {self.name!r}: pass --layer and --alpha-max, or with commands that "
                "have --set, --set layer=... --set alpha_max=..."
            )
        config = RudderConfig() if stored is None else copy.deepcopy(stored)
        config.override({name: check_setting(name, value) for name, value in given.items()})
        return config

    def record(self) -> dict[str, Any]:
        """Describe the model for a result."""
        return {
            "name": self.name,
            "revision": self.revision,
            "class": type(self.model).__name__,
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "generation_config": _generation_options(self.model),
        }


def _generation_options(model: PreTrainedModel) -> dict[str, Any]:
    """Return the model's own generation options, without those of sampling, which decoding sets."""
    options: dict[str, Any] = model.generation_config.to_diff_dict()  # type: ignore[union-attr]
    left_out = ("transformers_version", "do_sample", "temperature", "top_p", "top_k", "num_beams", "max_new_tokens")
    return {name: value for name, value in sorted(options.items()) if name not in left_out and name[0] != "_"}


def load_model(name: str | None, dtype: str = "auto", device: str = "cpu") -> LoadedModel:
    """Load a model for evaluation.

    Args:
        name: Hub id or folder of a base model, or of RUDDER settings, which name their base; None or
            "embedded" is the embedded one, "embedded:NAME" another of these. "ID@REVISION" chooses a commit, tag or
            branch.
        dtype: Type of the weights.
        device: Where the model goes.

    Raises:
        ValueError: The model or the settings cannot be loaded.
    """
    inside, revision, given = embedded.embedded_name(name), None, name
    if name is not None and inside is None and not Path(name).exists():
        name, _, given_revision = name.partition("@")
        revision = given_revision or None
        if revision is not None and Path(name).exists():
            raise ValueError(f"{given!r} names a revision, and the folder {name} has none: leave out @{revision}.")
    settings: dict[str, RudderConfig] = {}
    try:
        if inside is not None:
            settings = embedded.settings_for_methods(inside)
            base = RudderConfig(base_model_name_or_path=str(embedded.folder(inside)))
        elif (found := read_settings(str(name), revision=revision)) is not None:
            check_named_base(found, str(name))
            base, settings = found, {"": found}
        else:
            base = RudderConfig(base_model_name_or_path=str(name), base_model_revision=revision)
        if not settings:
            # Methods that need settings say so when they are made.
            with suppress(ValueError):
                settings[""] = get_preset(str(name)).config()
        source = str(base.base_model_name_or_path)
        model = load_base(base, LoadArguments(base={"dtype": dtype})).to(device).eval()
        processor = load_processor(base)
    except OSError as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"Cannot load {given or 'the embedded model'!r}: {reason}") from error
    return LoadedModel(name or "embedded", model, processor, settings, base_revision(model, source))


def load_steered(
    name: str | None, settings: dict[str, Any], device: str = "cpu", dtype: str = "auto"
) -> tuple[RudderForConditionalGeneration, Any]:
    """Load a steered model and its processor, with `settings` on top of the model's own or its preset.

    The other arguments are those of [`load_model`].

    Raises:
        ValueError: The model cannot be loaded or steered, or settings are missing or wrong.
    """
    loaded = load_model(name, dtype, device)
    return RudderForConditionalGeneration.from_base(loaded.model, loaded.config_with(settings)), loaded.processor


def base_revision(model: PreTrainedModel, source: str) -> str:
    """Return the commit that the model was loaded from, or for a folder a hash of its files."""
    if Path(source).is_dir():
        return files_digest(Path(source))
    return str(getattr(model.config, "_commit_hash", None) or "unknown")
