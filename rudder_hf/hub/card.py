"""The model card of a settings repository: what it holds, where it comes from, how to load it, what to expect."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, ModelCardData

from ..core.configuration import RudderConfig
from ..core.settings import CONTRAST_DEFAULTS
from ..core.trust import is_on_hub
from ..core.version import OLDEST_TRANSFORMERS, __version__
from ..presets import PRESETS, Preset

TAG = "rudder"
_COMMIT = re.compile(r"[0-9a-f]{40}")  # always names the same files
# The last line of a card: a digest of the rest, which an edited card does not match.
_DIGEST = "\n\n<!-- Written by rudder_hf; without edits its digest is "
_OBJECTIVES = {
    "f1": "highest F1",
    "paper": "lowest mean of CHAIR_S and CHAIR_I",
    "grounding": "highest grounding, without annotations",
}
# What the card repeats of a calibration record; config.json has all of it.
_DETAILS = {
    "detail": "source",
    "metric": "chosen by",
    "images": "images to choose with",
    "held_out_images": "held-out images",
    "data": "data",
    "prompt": "prompt",
    "max_new_tokens": "new tokens at most",
    "date": "date",
}
_SETTING_MEANINGS = {
    "layer": "decoder layer that is read and steered, from 0",
    "alpha_max": "strength of the push, in units of the hidden state",
    "k": "sensitivity of the gate",
    "c": "concentration of the gate",
    "g_min": "smallest gate",
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
# Metrics in a calibration record, in the card's order.
_CARD_METRICS = {
    "chair_s": "CHAIR_S",
    "chair_i": "CHAIR_I",
    "chair_i_distinct": "distinct CHAIR_I",
    "recall": "recall",
    "precision": "precision",
    "f1": "F1",
    "repeated_mentions": "repeated mentions",
    "broken_sentences": "broken sentences",
}
_MOST_P_VALUE = 0.05


def render_card(config: RudderConfig, repo_id: str | None = None, code: bool = True) -> str:
    """Render the README.md of a settings repository: Markdown with the Hub's metadata block.

    Args:
        config: The settings.
        repo_id: Where the repository lives, for the snippets. None takes a name that users have to replace.
        code: Whether the repository holds code, or settings only.
    """
    base, record, provenance = config.base_model_name_or_path, config.calibration or {}, Provenance(config)
    on_hub = base is not None and is_on_hub(base)
    base_name = _public_name(base)
    metadata = ModelCardData(
        base_model=base_name if on_hub else None,
        # The Hub knows adapter, finetune, merge and quantized: what is added to a base and needs it is an adapter.
        base_model_relation="adapter" if on_hub else None,
        library_name="transformers",
        pipeline_tag="image-text-to-text",
        license="apache-2.0",
        tags=[TAG, "hallucination", "steering", "image-to-text", *(["custom_generate"] if code else [])],
    )
    card: ModelCard = ModelCard.from_template(
        metadata,
        template_path=str(Path(__file__).with_name("card.md")),
        version=__version__,
        transformers_needed=OLDEST_TRANSFORMERS,
        repo=repo_id or f"your-name/{base_name.split('/')[-1] if on_hub else 'my'}-rudder",
        code=code,
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
        provenance=provenance,
        details=_details(provenance, record),
        held_out=_held_out_rows(record) if provenance.stands else [],
        held_out_images=_one_line(record.get("held_out_images", "the")),
        controls=_controls(record),
        reported=provenance.preset.reported if provenance.calibrated and provenance.preset else {},
        first_token=config.steer_first_token,
        contrast=config.contrast,
    )
    text = str(card)
    return f"{text}{_DIGEST}{_card_digest(text)} -->\n"


def is_rendered(card: str) -> bool:
    """Return whether a card is as [`render_card`] wrote it: one that was edited is not to be replaced."""
    text, mark, digest = card.replace("\r\n", "\n").rpartition(_DIGEST)
    return bool(mark) and digest.strip() == f"{_card_digest(text)} -->"


def _card_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Provenance:
    """Where settings come from, in words that claim no more than their calibration record shows.

    A record stands for one model and for one set of settings, which it names. On another model, or with settings
    changed by hand, the settings are not calibrated.
    """

    stands: bool  # whether the record was made for these settings on this base
    calibrated: bool  # whether it also shows that they help
    headline: str  # a sentence for the card
    note: str | None  # the same for `config.json`; None where there is nothing to add to the record
    changed: dict[str, tuple[Any, Any]]  # settings that are not those of the record: (recorded, now)
    preset: Preset | None  # the preset whose published settings these are

    def __init__(self, config: RudderConfig) -> None:
        record, base, now = config.calibration or {}, config.base_model_name_or_path, config.settings()
        model, found = (
            record[part] if isinstance(record.get(part), Mapping) else {} for part in ("model", "settings")
        )
        # Records without a contrast were made without; the rest of its settings then says nothing.
        found = found and {**{name: now[name] for name in CONTRAST_DEFAULTS}, "contrast": 0.0, **found}
        self.changed = {name: (found[name], value) for name, value in now.items() if found.get(name, value) != value}
        own = next((preset for preset in PRESETS.values() if preset.base_model == base), None)
        if own is not None and now != own.config().settings():
            own = None
        self.preset = own if own is not None and own.calibrated else None
        commits = [str(revision) for revision in (model.get("revision"), config.base_model_revision)]
        revisions = set(filter(_COMMIT.fullmatch, commits))
        same_model = base is not None and model.get("name") == base
        self.stands = same_model and set(found) >= set(now) and not self.changed and len(revisions) < 2
        refused, of_paper = record.get("refusal"), record.get("source") == "paper"
        # Whatever a record says, the paper's settings are those that the paper gives, for the paper's models.
        self.calibrated = self.preset is not None if of_paper else self.stands and not refused
        origin, self.note = "the paper" if of_paper else "a calibration", None
        if self.calibrated:
            paper = "These settings are the paper's."
            self.headline = paper if of_paper else "These settings were calibrated on this model."
            return
        if not record:
            self.headline = "These settings are **not calibrated** on this model."
            if own is not None and not own.calibrated:
                self.headline += f" They are a {own.source}."
        elif same_model and self.changed:
            self.note = f"started from {origin}, changed by hand since: not calibrated together"
            self.headline = f"These settings started from {origin} and were **changed by hand** since; "
            self.headline += "together they are not calibrated."
        elif self.stands and refused:
            self.note = f"not calibrated: {refused}"
            self.headline = "A calibration on this model chose these settings, but they are **not calibrated**: "
            self.headline += f"{_one_line(refused)}."
        else:
            name = model.get("name")
            source = f"{origin} on {_public_name(name)}" if name else f"{origin} that names no model"
            self.note = f"taken from {source}, not calibrated for this model"
            self.headline = f"These settings are **taken from {_one_line(source)}, not calibrated for this model**."
        self.headline += " Calibrate them on your own images before you rely on them."


def _details(provenance: Provenance, record: Mapping[str, Any]) -> list[str]:
    """Return lines on how the settings were found, and on what was changed since."""
    lines = [
        f"`{name}`: {_one_line(was)} was found, now {_one_line(value)}"
        for name, (was, value) in provenance.changed.items()
    ]
    known = {**record, "metric": _OBJECTIVES.get(str(record.get("metric")), record.get("metric"))}
    return lines + [f"{label}: {_one_line(known[name])}" for name, label in _DETAILS.items() if known.get(name)]


def held_out_changes(record: Mapping[str, Any], against: str = "held_out") -> dict[str, Mapping[str, float]]:
    """Return the differences of a record that the card shows, by metric, in the card's order; old ones lack some."""
    known: Any = record.get(against)
    return {
        name: known[name]
        for name in (_CARD_METRICS if isinstance(known, Mapping) else ())
        if isinstance(known.get(name), Mapping)
        and all(isinstance(known[name].get(key), (int, float)) for key in ("left", "right", "value", "low", "high"))
    }


def _held_out_rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return rows of the held-out table: metric, vanilla, RUDDER, change with its interval, significant or not."""
    return [
        (
            _CARD_METRICS[name],
            f"{100 * change['left']:.1f}",
            f"{100 * change['right']:.1f}",
            _interval(change),
            "yes" if _significant(change) else "no",
        )
        for name, change in held_out_changes(record).items()
    ]


def _controls(record: Mapping[str, Any]) -> list[str]:
    """Return sentences on what is left of the effect beside saying less, and with another image's CARD."""
    recall, lines = held_out_changes(record).get("recall"), []
    shorter = held_out_changes(record, "held_out_minus_truncated").get("chair_s")
    if recall is not None and recall["right"] >= recall["left"]:
        lines.append("Recall does not fall, so that vanilla's captions need not be truncated for a fair comparison.")
    elif shorter is not None:
        shown = "significant" if _significant(shorter) else "not significant"
        lines.append(f"CHAIR_S minus that of vanilla truncated to the same recall: {_interval(shorter)}, {shown}.")
    other = held_out_changes(record, "held_out_own_minus_other_card").get("chair_s")
    if other is not None:
        about = "is" if other["high"] < 0 else "may not be"
        lines.append(
            f"CHAIR_S minus that with another image's CARD: {_interval(other)}. "
            f"The effect {about} specific to the image."
        )
    return lines


def _interval(change: Mapping[str, float]) -> str:
    value, low, high = (100 * change[key] for key in ("value", "low", "high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"


def _significant(change: Mapping[str, float]) -> bool:
    """Return whether the interval leaves out 0 and the p-value, which old records lack, is small."""
    p_value = change.get("p_value")
    unlikely = not isinstance(p_value, (int, float)) or p_value <= _MOST_P_VALUE
    return unlikely and not change["low"] <= 0 <= change["high"]


def _public_name(name: Any) -> str:
    """Return a model's id. The path of a folder means nothing to others, and tells about the machine it is on."""
    return str(name) if is_on_hub(name) else "a model that is not on the Hub"


def _one_line(value: Any) -> str:
    """Write a value on one line that cannot break a table or a list; of a list, only its length."""
    if isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, Mapping):
        text = ", ".join(
            f"{str(name).replace('_', ' ')} {f'({_one_line(part)})' if isinstance(part, Mapping) else _one_line(part)}"
            for name, part in value.items()
        )
    else:
        text = str(len(value)) if isinstance(value, (list, tuple)) else str(value)
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
