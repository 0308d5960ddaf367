"""The model card of a settings repository: what it holds, where it comes from, how to load it, what to expect."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from ..core.compat import OLDEST_TRANSFORMERS
from ..core.configuration import CONTRAST_DEFAULTS, RudderConfig
from ..core.trust import is_commit, is_on_hub
from ..core.version import __version__
from ..presets import PRESETS
from .card_text import CARD_TEMPLATE, held_out_text

PAPER_TITLE = (
    "Adaptive Residual-Update Steering for Low-Overhead Hallucination Mitigation in Large Vision Language Models"
)
# The last line of a card: a digest of the rest, which an edited card does not match.
_DIGEST = "\n\n<!-- Written by rudder_hf; without edits its digest is "
# Longer lists of a calibration record (the ids of its images) stand in config.json; the card says how many they are.
_LONGEST_LIST = 8
# What the card has elsewhere or in other words, and what only machines need: config.json has all of it.
_NO_DETAIL = {
    *("source", "evaluation", "settings", "model", "note", "refusal", "held_out", "held_out_minus_truncated"),
    *("held_out_own_minus_other_card", "held_out_looks", "baseline", "result", "won_draws", "out_of_bag_change"),
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
    "contrast": "beyond the paper: lambda of the image-value contrast; 0 is off",
    "contrast_first_layer": "beyond the paper: first layer whose cached image values are contrasted",
    "contrast_after": "beyond the paper: answer tokens before the contrast is applied, once",
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
            with its fields. None takes those under `"evaluation"` in the config's calibration record, if it stands
            for these settings on this model.

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
        tags=["rudder", "hallucination", "steering", "image-to-text", "custom_generate"],
        model_name=repo.split("/")[-1] if results else None,
        eval_results=results or None,
    )
    card: ModelCard = ModelCard.from_template(
        metadata,
        template_str=CARD_TEMPLATE,
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
        settings=[(name, _cell(value), _MEANINGS[name]) for name, value in config.settings().items()],
        found=provenance,
        reported=provenance.preset.reported if provenance.calibrated and provenance.preset else {},
        results=[_result_row(result) for result in results],
        first_token=config.steer_first_token,
        contrast=config.contrast,
    )
    text = str(card)
    return f"{text}{_DIGEST}{_digest(text)} -->\n"


def is_rendered(card: str) -> bool:
    """Whether a card is as [`render_card`] wrote it: one that somebody edited is not to be replaced."""
    text, mark, digest = card.replace("\r\n", "\n").rpartition(_DIGEST)
    return bool(mark) and digest.strip() == f"{_digest(text)} -->"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def default_repo_name(config: RudderConfig) -> str:
    """A name for the repository of these settings, such as `llava-1.5-7b-rudder`."""
    for preset in PRESETS.values():
        if preset.base_model == config.base_model_name_or_path:
            return f"{preset.name}-rudder"
    base = config.base_model_name_or_path
    return f"{base.split('/')[-1]}-rudder" if base is not None and is_on_hub(base) else "rudder"


class Provenance:
    """Where settings come from, in words that claim no more than their calibration record shows.

    A record stands for one model and for one set of settings, which it names. On another model, or with settings
    changed by hand, the settings are not calibrated.

    Attributes:
        calibrated: Whether the record stands for these settings on this base.
        headline: A sentence for the card.
        note: The same for `config.json`, None where there is nothing to add to the record.
        details: What the record says, a line each.
        held_out: What held-out images show, as Markdown; empty if nothing, or if it was of other settings.
        preset: The preset whose published settings these are.
    """

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
        self.note: str | None = None
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
                f"`{name}`: {_cell(was)} was found, now {_cell(value)}" for name, (was, value) in changed.items()
            ]
        elif refused and stands:
            self.note = f"not calibrated: {refused}"
            self.headline = "A calibration on this model chose these settings, but they are **not calibrated**: "
            self.headline += f"{_cell(refused)}."
        else:
            name = model.get("name")
            source = f"{origin} on {_public_name(name)}" if name else f"{origin} that names no model"
            self.note = f"taken from {source}, not calibrated for this model"
            self.headline = f"These settings are **taken from {_cell(source)}, not calibrated for this model**."
        self.headline += " Calibrate them on your own images before you rely on them."


def _details(record: Mapping[str, Any]) -> list[str]:
    """What a calibration record says, without what stands elsewhere on the card."""
    metric = record.get("metric")
    lines = [
        f"{_DETAIL_NAMES.get(name) or _cell(name).replace('_', ' ')}: {_cell(value)}"
        for name, value in {**record, "metric": _OBJECTIVES.get(str(metric), metric)}.items()
        if name not in _NO_DETAIL and value is not None
    ]
    model = record.get("model")
    if isinstance(model, Mapping) and model.get("name"):
        rest = {name: value for name, value in model.items() if name != "name" and value is not None}
        lines.insert(0, f"model: {_cell(_public_name(model['name']))}{', ' + _cell(rest) if rest else ''}")
    return lines


def _public_name(name: Any) -> str:
    """A model's id. The path of a folder means nothing to others, and tells about the machine it is on."""
    return str(name) if is_on_hub(name) else "a model that is not on the Hub"


def _results(given: Any) -> list[EvalResult]:
    """Measured results in the Hub's form."""
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
    return _cell(dataset), _cell(result.metric_name or result.metric_type), _cell(result.metric_value)


def _cell(value: Any) -> str:
    """A value on one line that cannot break a table or a list."""
    if isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, Mapping):
        text = ", ".join(
            f"{str(name).replace('_', ' ')} {f'({_cell(part)})' if isinstance(part, Mapping) else _cell(part)}"
            for name, part in value.items()
        )
    elif isinstance(value, (list, tuple)):
        long = len(value) > _LONGEST_LIST
        text = f"{len(value)} entries, in config.json" if long else ", ".join(_cell(part) for part in value)
    else:
        text = str(value)
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
