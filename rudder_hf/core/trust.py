"""What a config.json may make us do: load the one base model that it names, and nothing else."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from .settings import setting_error

# A commit or the name of a branch or tag: what git allows, without what has a meaning in paths and addresses.
_REVISION = re.compile(r"(?!.*(\.\.|//))[A-Za-z0-9_][A-Za-z0-9_.\-+/]{0,254}")


def is_hub_id(name: Any) -> bool:
    """Return whether a name has the form of a repository on the Hub, `name` or `namespace/name`."""
    # Older versions of huggingface_hub let a line break at the end pass.
    if isinstance(name, str) and name and name.isprintable():
        with suppress(HFValidationError):
            validate_repo_id(name)
            return True
    return False


def is_on_hub(name: str | os.PathLike[str]) -> bool:
    """Return whether a name is looked up on the Hub: it is an id, and there is no folder of that name."""
    return is_hub_id(name) and not os.path.isdir(name)


def check_revision(revision: Any, setting: str = "base_model_revision") -> None:
    """Raise a ValueError for what is no commit, branch or tag, and could lead out of the repository it belongs to."""
    if revision is not None and not (isinstance(revision, str) and _REVISION.fullmatch(revision)):
        raise setting_error(setting, revision, "a commit, branch or tag, or None")


def check_base_name(name: Any, *, from_hub: bool) -> None:
    """Raise a ValueError for the name of a base model that leads elsewhere than a user expects.

    Settings from the Hub may only name a model on the Hub. Settings in a folder may also name a folder, by its full
    path: that is what `save_pretrained` writes for a base that was loaded from disk.
    """
    allowed = "the id of a model on the Hub ('namespace/name')"
    if is_hub_id(name):
        if not (from_hub and os.path.exists(name)):
            return
        allowed += ", and no file or folder in the working directory, which transformers would load instead"
    elif not from_hub:
        full_path = isinstance(name, str) and os.path.isabs(name) and os.path.normpath(name) == name.rstrip("/\\")
        if full_path and not name.startswith(("//", "\\\\")) and name.isprintable():
            return
        allowed += ", or the full path of a folder without '..'"
    source = "the Hub" if from_hub else "a folder"
    allowed += f" in settings from {source}. If you trust it, load the base yourself and use `from_base(base, config)`"
    raise setting_error("base_model_name_or_path", name, allowed)
