"""What differs between the supported versions of transformers, each with its reason and its version.

Everything else in this package is written for the newest version and holds for the oldest as it stands.
"""

from __future__ import annotations

from typing import Any

import transformers
from huggingface_hub import HfApi, is_offline_mode, try_to_load_from_cache
from transformers.utils.hub import extract_commit_hash

OLDEST_TRANSFORMERS = "5.16"
"""The oldest version that the tests pass on, see constraints-oldest.txt. Settings repositories and cards name it."""


def generation_options(pipeline: Any, given: dict[str, Any], **overrides: Any) -> dict[str, Any]:
    """What a pipeline passes to `generate`: what a call gives, on top of what the pipeline was made with.

    transformers before 5.20 has no `_prepare_generate_kwargs`: a pipeline holds a whole generation config instead.
    """
    prepare = getattr(pipeline, "_prepare_generate_kwargs", None)
    if prepare is not None:
        return dict(prepare(given, **overrides))
    return {"generation_config": pipeline.generation_config, **given, **overrides}


class _Resolved(str):
    """A commit, with the attribute that it is read by where transformers resolves revisions itself."""

    @property
    def resolved(self) -> str:
        return str(self)


def resolve_revision(name: str, revision: str | None, **way: Any) -> Any:
    """The commit that a revision of a model on the Hub stands for, as `.resolved`; as it was given if that is unknown.

    transformers before 5.18 has no `resolve_revision`: the Hub is asked, or the cache where it cannot be asked.

    Args:
        name: Hub id.
        revision: Branch, tag or commit; None for the default branch.
        **way: `token`, `cache_dir`, `local_files_only`.
    """
    stock = getattr(transformers.utils.hub, "resolve_revision", None)
    if stock is not None:
        return stock(name, revision, **way)
    commit = None
    if not (way.get("local_files_only") or is_offline_mode()):
        try:
            commit = HfApi().model_info(name, revision=revision, token=way.get("token")).sha
        except Exception:
            # Whatever is wrong is said where the files are loaded, in better words, or mended there from the cache.
            commit = None
    if commit is None:
        config = try_to_load_from_cache(name, "config.json", cache_dir=way.get("cache_dir"), revision=revision)
        commit = extract_commit_hash(config, None) if isinstance(config, str) else None
    return revision if commit is None else _Resolved(commit)
