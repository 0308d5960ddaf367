"""The model card of a settings repository: what it holds, where it comes from, how to load it, what to expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..core.configuration import CALL_SETTINGS, RudderConfig
from ..core.trust import is_on_hub
from ..core.version import __version__
from ..presets import PRESETS, Preset
from .card_text import CARD_TEMPLATE

PAPER_TITLE = (
    "Adaptive Residual-Update Steering for Low-Overhead Hallucination Mitigation in Large Vision Language Models"
)
# Longer lists of a calibration record (the ids of its images) stand in config.json; the card says how many they are.
_LONGEST_LIST = 8
_MEANINGS = {
    "layer": "decoder layer that is read and steered, from 0",
    "alpha_max": "strength of the push, in units of the hidden state",
    "k": "sensitivity of the gate",
    "c": "concentration of the gate",
    "g_min": "least gate",
    "g_max": "largest gate",
    "norm_cap": "longest push",
    "mode": "`beta`: gated per token; `add`: constant strength",
    "pool": "how prompt tokens are pooled into CARD",
    "span": "which prompt tokens are pooled",
    "steer_first_token": "whether the position that emits the first answer token is steered",
}


def render_card(
    config: RudderConfig,
    repo_id: str | None = None,
    evaluation: Sequence[EvalResult | Mapping[str, Any]] | None = None,
) -> str:
    """The README.md of a settings repository.

    Args:
        config: The settings.
        repo_id: Where the repository lives, for the snippets. None takes a name that users have to replace.
        evaluation: Results that were measured with these settings, as `huggingface_hub.EvalResult` or as dictionaries
            with its fields. None takes those under `"evaluation"` in the config's calibration record, if there are
            any.

    Returns:
        Markdown with the Hub's metadata block.

    Raises:
        ValueError: A result is not in that form.
    """
    base = config.base_model_name_or_path
    on_hub = base is not None and is_on_hub(base)
    # The path of a folder means nothing to others, and tells about the machine it is on.
    base_name = str(base) if on_hub else "a model that is not on the Hub"
    repo = repo_id or f"your-name/{default_repo_name(config)}"
    results = _results(config, evaluation)
    preset = _preset_of(config)
    card: ModelCard = ModelCard.from_template(
        _metadata(config, base_name if on_hub else None, repo, results),
        template_str=CARD_TEMPLATE,
        package="rudder_hf",
        version=__version__,
        title=PAPER_TITLE,
        repo=repo,
        # BLIP's processors have no chat template.
        chats="blip" not in base_name.lower(),
        base=base_name,
        base_link=f"[{base_name}](https://huggingface.co/{base_name})" if on_hub else base_name,
        revision=config.base_model_revision if on_hub else None,
        settings=[(name, _cell(getattr(config, name)), _MEANINGS[name]) for name in ("layer", *CALL_SETTINGS)],
        found=_Found(config),
        reported=_pairs(preset) if preset is not None and not changed_settings(config) else [],
        results=[_result_row(result) for result in results],
        first_token=config.steer_first_token,
    )
    return str(card)


def default_repo_name(config: RudderConfig) -> str:
    """A name for the repository of these settings, such as `llava-1.5-7b-rudder`."""
    for preset in PRESETS.values():
        if preset.base_model == config.base_model_name_or_path:
            return f"{preset.name}-rudder"
    base = config.base_model_name_or_path
    return f"{base.split('/')[-1]}-rudder" if base is not None and is_on_hub(base) else "rudder"


def changed_settings(config: RudderConfig) -> dict[str, tuple[Any, Any]]:
    """Settings that are no longer those of the calibration record: name -> (found, now).

    The record of a preset is compared with the preset, another one with its own `"settings"`, if it has them.
    """
    preset = _preset_of(config)
    record = config.calibration or {}
    found: Any = record.get("settings")
    if preset is not None:
        original = preset.config()
        found = {name: getattr(original, name) for name in ("layer", *CALL_SETTINGS)}
    if not isinstance(found, Mapping):
        return {}
    names = [name for name in ("layer", *CALL_SETTINGS) if name in found]
    return {name: (found[name], getattr(config, name)) for name in names if found[name] != getattr(config, name)}


class _Found:
    """How the settings were found, in words."""

    def __init__(self, config: RudderConfig) -> None:
        record = config.calibration
        preset = next((p for p in PRESETS.values() if p.base_model == config.base_model_name_or_path), None)
        changed = changed_settings(config)
        self.details: list[str] = []
        self.calibrated = bool(record) and not changed
        if not record:
            self.headline = "These settings are **not calibrated** on this model."
            if preset is not None and not preset.calibrated and _same(config, preset):
                self.headline += f" They are a {preset.source}."
            self.headline += " Calibrate them on your own pictures before you rely on them."
            return
        origin = "the paper" if record.get("source") == "paper" else "a calibration"
        if changed:
            self.headline = f"These settings started from {origin} and were **changed by hand** since; "
            self.headline += "together they are not calibrated."
            self.details += [
                f"`{name}`: {_cell(was)} was found, now {_cell(now)}" for name, (was, now) in changed.items()
            ]
        elif record.get("source") == "paper":
            self.headline = "These settings are the paper's."
        else:
            self.headline = "These settings were calibrated on this model."
        self.details += [
            f"{_cell(name).replace('_', ' ')}: {_cell(value)}"
            for name, value in record.items()
            if name not in ("source", "evaluation", "settings") and value is not None
        ]


def _preset_of(config: RudderConfig) -> Preset | None:
    """The preset whose published settings a config says it has."""
    if not config.calibration or config.calibration.get("source") != "paper":
        return None
    return next((p for p in PRESETS.values() if p.calibrated and p.base_model == config.base_model_name_or_path), None)


def _same(config: RudderConfig, preset: Preset) -> bool:
    original = preset.config()
    return all(getattr(config, name) == getattr(original, name) for name in ("layer", *CALL_SETTINGS))


def _pairs(preset: Preset) -> list[tuple[str, float, float]]:
    return [(name, before, after) for name, (before, after) in preset.reported.items()]


def _metadata(config: RudderConfig, base: str | None, repo: str, results: list[EvalResult]) -> ModelCardData:
    return ModelCardData(
        base_model=base,
        # The Hub knows adapter, finetune, merge and quantized: what is added to a base and needs it is an adapter.
        base_model_relation="adapter" if base else None,
        library_name="transformers",
        pipeline_tag="image-text-to-text",
        license="apache-2.0",
        tags=["rudder", "hallucination", "steering", "image-to-text", "custom_generate"],
        model_name=repo.split("/")[-1] if results else None,
        eval_results=results or None,
    )


def _results(config: RudderConfig, evaluation: Sequence[EvalResult | Mapping[str, Any]] | None) -> list[EvalResult]:
    """Measured results in the Hub's form."""
    given: Any = (config.calibration or {}).get("evaluation", []) if evaluation is None else evaluation
    known = {field.name for field in fields(EvalResult)}
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(f"evaluation is {given!r}, but has to be a list of results in the form of EvalResult.")
    results = []
    for index, result in enumerate(given):
        if not isinstance(result, EvalResult):
            if not isinstance(result, Mapping) or not set(result) <= known:
                raise ValueError(f"evaluation[{index}] is {result!r}, but may have the keys {sorted(known)}.")
            try:
                result = EvalResult(**result)
            except (TypeError, ValueError) as error:
                raise ValueError(f"evaluation[{index}] is {result!r}: {error}") from error
        results.append(result)
    return results


def _result_row(result: EvalResult) -> tuple[str, str, str]:
    dataset = f"{result.dataset_name} ({result.dataset_split})" if result.dataset_split else result.dataset_name
    return _cell(dataset), _cell(result.metric_name or result.metric_type), _cell(result.metric_value)


def _cell(value: Any) -> str:
    """A value on one line that cannot break a table or a list."""
    if isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, Mapping):
        text = ", ".join(f"{name} {_cell(part)}" for name, part in value.items())
    elif isinstance(value, (list, tuple)):
        long = len(value) > _LONGEST_LIST
        text = f"{len(value)} entries, in config.json" if long else ", ".join(_cell(part) for part in value)
    else:
        text = str(value)
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
