"""The model card of a settings repository: what it holds, where it comes from, how to load it, what to expect."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..core.configuration import RudderConfig
from ..core.settings import CONTRAST_DEFAULTS
from ..core.trust import is_commit, is_on_hub
from ..core.version import OLDEST_TRANSFORMERS, __version__
from ..presets import PRESETS, Preset
from .held_out import held_out_text

PAPER_TITLE = (
    "Adaptive Residual-Update Steering for Low-Overhead Hallucination Mitigation in Large Vision Language Models"
)
TAG = "rudder"
# The last line of a card: a digest of the rest, which an edited card does not match.
_DIGEST = "\n\n<!-- Written by rudder_hf; without edits its digest is "
# Longer lists of a calibration record (the ids of its images) stand in config.json; the card says how many they are.
_LONGEST_LIST = 8
# What the card has elsewhere or in other words, and what only machines need: config.json has all of it.
_NO_DETAIL = {
    *("source", "evaluation", "settings", "model", "note", "refusal", "held_out", "held_out_minus_truncated"),
    *("held_out_own_minus_other_card", "baseline", "result", "held_out_looks", "won_draws", "out_of_bag_change"),
    *("grid", "layers", "limits", "lineage", "versions"),
}
_OBJECTIVES = {
    "f1": "highest F1",
    "paper": "lowest mean of CHAIR_S and CHAIR_I",
    "mean": "lowest mean of CHAIR_S and CHAIR_I",
    "chair_s": "lowest CHAIR_S",
    "chair_i": "lowest CHAIR_I",
    "grounding": "highest grounding, without annotations",
}
_DETAIL_NAMES = {"metric": "chosen by", "images": "images to choose with", "held_out_images": "held-out images"}
_SETTING_MEANINGS = {
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
    "contrast": "beyond the paper: lambda of the image-value contrast; 0 is off",
    "contrast_first_layer": "beyond the paper: first layer whose cached image values are contrasted",
    "contrast_after": "beyond the paper: answer tokens before the contrast is applied, once",
}


def render_card(
    config: RudderConfig,
    repo_id: str | None = None,
    evaluation: Sequence[EvalResult | Mapping[str, Any]] | None = None,
    code: bool = True,
) -> str:
    """Render the README.md of a settings repository.

    Args:
        config: The settings.
        repo_id: Where the repository lives, for the snippets. None takes a name that users have to replace.
        evaluation: Results that were measured with these settings, as `huggingface_hub.EvalResult` or as dictionaries
            with its fields. None takes those under `"evaluation"` in the config's calibration record, if it stands
            for these settings on this model.
        code: Whether the repository holds code, or settings only.

    Returns:
        Markdown with the Hub's metadata block.

    Raises:
        ValueError: A result is not in that form.
    """
    base = config.base_model_name_or_path
    on_hub = base is not None and is_on_hub(base)
    base_name = _public_name(base)
    repo = repo_id or f"your-name/{default_repo_name(config)}"
    provenance = Provenance(config)
    if evaluation is None:
        # A record that does not stand for these settings on this model has no results of theirs either.
        evaluation = (config.calibration or {}).get("evaluation", []) if provenance.calibrated else []
    results = _results(evaluation)
    metadata = ModelCardData(
        base_model=base_name if on_hub else None,
        # The Hub knows adapter, finetune, merge and quantized: what is added to a base and needs it is an adapter.
        base_model_relation="adapter" if on_hub else None,
        library_name="transformers",
        pipeline_tag="image-text-to-text",
        license="apache-2.0",
        tags=[TAG, "hallucination", "steering", "image-to-text", *(["custom_generate"] if code else [])],
        model_name=repo.split("/")[-1] if results else None,
        eval_results=results or None,
    )
    card: ModelCard = ModelCard.from_template(
        metadata,
        template_path=str(Path(__file__).with_name("card.md")),
        package="rudder_hf",
        version=__version__,
        transformers_needed=OLDEST_TRANSFORMERS,
        title=PAPER_TITLE,
        repo=repo,
        # BLIP's processors have no chat template.
        chats="blip" not in base_name.lower(),
        base=base_name,
        base_link=f"[{base_name}](https://huggingface.co/{base_name})" if on_hub else base_name,
        revision=config.base_model_revision if on_hub else None,
        settings=[
            (name, _one_line(value), _SETTING_MEANINGS[name])
            for name, value in config.settings().items()
            # Without a contrast its settings have no effect.
            if config.contrast or name not in CONTRAST_DEFAULTS
        ],
        found=provenance,
        reported=provenance.preset.reported if provenance.calibrated and provenance.preset else {},
        results=[_result_row(result) for result in results],
        first_token=config.steer_first_token,
        contrast=config.contrast,
        code=code,
        trust=", trust_remote_code=True" if code else "",
    )
    text = str(card)
    return f"{text}{_DIGEST}{_card_digest(text)} -->\n"


def is_rendered(card: str) -> bool:
    """Return whether a card is as [`render_card`] wrote it: one that was edited is not to be replaced."""
    text, mark, digest = card.replace("\r\n", "\n").rpartition(_DIGEST)
    return bool(mark) and digest.strip() == f"{_card_digest(text)} -->"


def _card_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def default_repo_name(config: RudderConfig) -> str:
    """Return a name for the repository of these settings, such as `llava-1.5-7b-rudder`."""
    for preset in PRESETS.values():
        if preset.base_model == config.base_model_name_or_path:
            return f"{preset.name}-rudder"
    base = config.base_model_name_or_path
    return f"{base.split('/')[-1]}-rudder" if base is not None and is_on_hub(base) else "rudder"


class Provenance:
    """Where settings come from, in words that claim no more than their calibration record shows.

    A record stands for one model and for one set of settings, which it names. On another model, or with settings
    changed by hand, the settings are not calibrated.
    """

    calibrated: bool  # whether the record stands for these settings on this base
    headline: str  # a sentence for the card
    note: str | None  # the same for `config.json`; None where there is nothing to add to the record
    details: list[str]  # the record, a line each
    held_out: str  # held-out results as Markdown; empty if there are none of these settings
    preset: Preset | None  # the preset whose published settings these are

    def __init__(self, config: RudderConfig) -> None:
        record, base = config.calibration or {}, config.base_model_name_or_path
        model, found = (
            record[part] if isinstance(record.get(part), Mapping) else {} for part in ("model", "settings")
        )
        now = config.settings()
        refused = record.get("refusal")
        # Records without a contrast were made without; the rest of its settings then says nothing.
        found = found and {**{name: now[name] for name in CONTRAST_DEFAULTS}, "contrast": 0.0, **found}
        changed = {name: (found[name], value) for name, value in now.items() if found.get(name, value) != value}
        preset = next((preset for preset in PRESETS.values() if preset.base_model == base), None)
        same_preset = preset is not None and now == preset.config().settings()
        self.details = _details(record)
        self.preset = preset if preset is not None and preset.calibrated and same_preset else None
        revisions = {str(name) for name in (model.get("revision"), config.base_model_revision) if is_commit(name)}
        named = model.get("name") is not None and model.get("name") == base
        stands = named and set(found) >= set(now) and not changed and len(revisions) < 2
        self.held_out = held_out_text(record) if stands else ""
        if record.get("source") == "paper":
            # Whatever a record says, the paper's settings are those that the paper gives, for the paper's models.
            self.calibrated = self.preset is not None
            origin = "the paper"
        else:
            origin = "a calibration"
            self.calibrated = stands and not refused
        self.note = None
        if not record:
            self.headline = "These settings are **not calibrated** on this model."
            if preset is not None and same_preset and not preset.calibrated:
                self.headline += f" They are a {preset.source}."
        elif self.calibrated:
            paper = "These settings are the paper's."
            self.headline = paper if origin == "the paper" else "These settings were calibrated on this model."
            return
        elif model.get("name") == base and changed:
            self.note = f"started from {origin}, changed by hand since: not calibrated together"
            self.headline = f"These settings started from {origin} and were **changed by hand** since; "
            self.headline += "together they are not calibrated."
            self.details[:0] = [
                f"`{name}`: {_one_line(was)} was found, now {_one_line(value)}"
                for name, (was, value) in changed.items()
            ]
        elif refused and stands:
            self.note = f"not calibrated: {refused}"
            self.headline = "A calibration on this model chose these settings, but they are **not calibrated**: "
            self.headline += f"{_one_line(refused)}."
        else:
            name = model.get("name")
            source = f"{origin} on {_public_name(name)}" if name else f"{origin} that names no model"
            self.note = f"taken from {source}, not calibrated for this model"
            self.headline = f"These settings are **taken from {_one_line(source)}, not calibrated for this model**."
        self.headline += " Calibrate them on your own images before you rely on them."


def _details(record: Mapping[str, Any]) -> list[str]:
    """List what a calibration record says, without what stands elsewhere on the card."""
    metric = record.get("metric")
    lines = [
        f"{_DETAIL_NAMES.get(name) or _one_line(name).replace('_', ' ')}: {_one_line(value)}"
        for name, value in {**record, "metric": _OBJECTIVES.get(str(metric), metric)}.items()
        if name not in _NO_DETAIL and value is not None
    ]
    model = record.get("model")
    if isinstance(model, Mapping) and model.get("name"):
        rest = {name: value for name, value in model.items() if name != "name" and value is not None}
        lines.insert(0, f"model: {_one_line(_public_name(model['name']))}{', ' + _one_line(rest) if rest else ''}")
    return lines


def _public_name(name: Any) -> str:
    """Return a model's id. The path of a folder means nothing to others, and tells about the machine it is on."""
    return str(name) if is_on_hub(name) else "a model that is not on the Hub"


def _results(given: Any) -> list[EvalResult]:
    """Return measured results in the Hub's form."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ValueError(f"evaluation is {given!r}, but has to be a list of results in the form of EvalResult.")
    results = []
    for index, result in enumerate(given):
        try:
            results.append(result if isinstance(result, EvalResult) else EvalResult(**result))
        except (TypeError, ValueError) as error:
            known = ", ".join(field.name for field in fields(EvalResult))
            raise ValueError(f"evaluation[{index}] is {result!r}: {error}. Its keys may be {known}.") from error
    return results


def _result_row(result: EvalResult) -> tuple[str, str, str]:
    dataset = f"{result.dataset_name} ({result.dataset_split})" if result.dataset_split else result.dataset_name
    return _one_line(dataset), _one_line(result.metric_name or result.metric_type), _one_line(result.metric_value)


def _one_line(value: Any) -> str:
    """Write a value on one line that cannot break a table or a list."""
    if isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, Mapping):
        text = ", ".join(
            f"{str(name).replace('_', ' ')} {f'({_one_line(part)})' if isinstance(part, Mapping) else _one_line(part)}"
            for name, part in value.items()
        )
    elif isinstance(value, (list, tuple)):
        long = len(value) > _LONGEST_LIST
        text = f"{len(value)} entries, in config.json" if long else ", ".join(_one_line(part) for part in value)
    else:
        text = str(value)
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
