"""Find settings repositories on the Hub for a base model, from their `config.json` alone: no code of theirs runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError

from ..core.configuration import RudderConfig
from ..core.trust import is_hub_id
from .card import TAG, Provenance, held_out_changes


@dataclass(frozen=True)
class Found:
    """A settings repository, and what its `config.json` says."""

    repo: str
    revision: str
    changed: str  # day of the last commit
    downloads: int  # of the last 30 days
    calibrated: bool = False  # whether a calibration on the base shows that these settings help
    note: str = ""  # why they are not calibrated, or could not be read
    settings: dict[str, Any] | None = None
    chair_s: dict[str, float] | None = None  # change on held-out images, as fractions with an interval
    f1: dict[str, float] | None = None


def check_base_id(base: str) -> None:
    """Raise ValueError if a name is no Hub id with its owner."""
    if not is_hub_id(base) or "/" not in base:
        raise ValueError("Give the Hub id of a model, OWNER/NAME, such as llava-hf/llava-1.5-7b-hf.")


def find_settings(base: str, limit: int = 20, token: str | None = None) -> list[Found]:
    """Return settings repositories for a base model, newest first.

    Asks the Hub for one list (tag `rudder`, `base_model`), and for each repository's `config.json`.

    Args:
        base: Hub id of the model that is steered.
        limit: The most repositories to return.
        token: For private repositories.

    Raises:
        ValueError: `base` is no Hub id.
    """
    check_base_id(base)
    api = HfApi(token=token)
    listed = api.list_models(
        filter=[TAG, f"base_model:{base}"],
        sort="last_modified",
        limit=limit,
        expand=["downloads", "lastModified", "sha"],
    )
    return [_read_listed(api, model, base) for model in listed]


def _read_listed(api: HfApi, model: Any, base: str) -> Found:
    changed = model.last_modified.date().isoformat() if model.last_modified else ""
    entry: dict[str, Any] = {
        "repo": model.id,
        "revision": model.sha or "main",
        "changed": changed,
        "downloads": model.downloads or 0,
    }
    try:
        path = Path(api.hf_hub_download(model.id, "config.json", revision=entry["revision"]))
        config = RudderConfig.from_dict(json.loads(path.read_text(encoding="utf-8")))
        provenance = Provenance(config)
    except (EntryNotFoundError, GatedRepoError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return Found(**entry, note=f"its config.json cannot be read ({type(error).__name__})")
    if config.base_model_name_or_path != base:
        return Found(**entry, note=f"its config.json is for {config.base_model_name_or_path!r}")
    changes = held_out_changes(config.calibration or {}) if provenance.stands else {}
    shown: dict[str, Any] = {name: dict(changes[name]) for name in ("chair_s", "f1") if name in changes}
    note = "" if provenance.calibrated else provenance.note or "without a calibration"
    return Found(**entry, calibrated=provenance.calibrated, note=note, settings=config.settings(), **shown)
