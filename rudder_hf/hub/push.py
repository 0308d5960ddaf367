"""A settings repository: `config.json`, the code that reads it, and a card. It holds no weights and no pickles."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, ModelInfo
from huggingface_hub.errors import RepositoryNotFoundError

from ..core.configuration import RudderConfig, check_settings_folder, is_settings
from ..core.errors import logger
from ..core.trust import is_hub_id, is_on_hub
from ..core.version import OLDEST_TRANSFORMERS
from .bundle import custom_generate_source, modeling_source, pipeline_source
from .card import Provenance, is_rendered, render_card
from .loading import resolve_commit
from .saving import (
    CODE_KEYS,
    GENERATE_FILE,
    MODELING_FILE,
    PIPELINE_FILE,
    REQUIREMENTS_FILE,
    stored_config,
    write_files,
)

CODE_FILES = (MODELING_FILE, PIPELINE_FILE, GENERATE_FILE, REQUIREMENTS_FILE)

# Seconds to wait for a Hub that does not answer.
_HUB_PATIENCE = 10.0
# What a new repository may hold, beside settings.
_HARMLESS = {".gitattributes", "README.md", "LICENSE", "LICENSE.md", "LICENSE.txt"}


def repo_files(
    config: RudderConfig,
    repo_id: str | None = None,
    card: str | None = None,
    code: bool = True,
) -> dict[str, str]:
    """Return the files of a settings repository: path in the repository -> text. Arguments as for [`push_repo`]."""
    files = {
        "README.md": render_card(config, repo_id, code) if card is None else card,
        "config.json": stored_config(config, CODE_KEYS if code else {}, Provenance(config).note),
    }
    if code:
        files |= {
            MODELING_FILE: modeling_source(),
            PIPELINE_FILE: pipeline_source(),
            GENERATE_FILE: custom_generate_source(config.settings()),
            REQUIREMENTS_FILE: f"transformers>={OLDEST_TRANSFORMERS}\n",
        }
    return files


def write_repo(
    config: RudderConfig,
    folder: str | Path,
    repo_id: str | None = None,
    code: bool = True,
) -> list[Path]:
    """Write a settings repository into a folder, which may exist.

    Args:
        config: The settings.
        folder: Where to write.
        repo_id: Where the repository will live, for the snippets in its card.
        code: Whether to write the code that loads the settings where rudder_hf is not installed.

    Returns:
        The files written.

    Raises:
        NotADirectoryError: There is a file in the folder's place.
        ValueError: The folder holds a model, or a setting is wrong.
    """
    folder = Path(folder)
    check_settings_folder(folder)
    # All texts are made before the first is written.
    files = repo_files(config, repo_id, code=code)
    card = folder / "README.md"
    if card.is_file() and not is_rendered(card.read_text(encoding="utf-8", errors="replace")):
        del files["README.md"]
        logger.warning(f"{card} was edited and is kept as it is: delete it for a new one.")
    written = write_files(folder, files)
    if not code:
        for name in CODE_FILES:
            (folder / name).unlink(missing_ok=True)
    return written


def push_repo(
    config: RudderConfig,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str | None = None,
    commit_description: str | None = None,
    card: str | None = None,
    replace_card: bool = False,
    code: bool = True,
) -> CommitInfo:
    """Push a settings repository to the Hub, in one commit. Without a change there is none.

    Args:
        config: The settings. If they name no revision of their base, that of its default branch is pinned.
        repo_id: Where to push; made if it does not exist.
        private: Whether a new repository is private; None for the namespace's default.
        token: A token with write access; None for the stored one.
        revision: Branch to push to, made if it does not exist.
        create_pr: Open a pull request instead.
        commit_message: What the history says.
        commit_description: More of it.
        card: A card to use instead of one that is rendered.
        replace_card: Whether a card that was edited on the Hub is replaced. By default it is kept, with a warning.
        code: Whether to push the code that loads the settings where rudder_hf is not installed.

    Raises:
        ValueError: The settings name no base on the Hub, so that others could not load them; or the repository holds
            something else than settings, or is public and was to be private.
        ConnectionError: The Hub cannot be reached, or closed the connection.
    """
    check_shareable(config, repo_id)
    api = HfApi(token=token)
    with _connected(api.endpoint, repo_id):
        repo_id, there = _ready_repo(api, repo_id, private, revision)
        files = repo_files(with_pinned_base(config, token), repo_id, card, code)
        stored = there.get("README.md", files["README.md"])
        if stored != files["README.md"] and not is_rendered(stored) and not replace_card:
            del files["README.md"]
            logger.warning(
                f"The card of {repo_id} was edited on the Hub and is kept; it may say something else than the "
                "settings. Pass replace_card=True (--replace-card) for a new one."
            )
        if revision is not None and not revision.startswith("refs/pr/"):
            api.create_branch(repo_id, branch=revision, exist_ok=True)
        additions = [CommitOperationAdd(name, text.encode()) for name, text in files.items()]
        outdated = [CommitOperationDelete(name) for name in there if name in CODE_FILES and name not in files]
        return api.create_commit(
            repo_id,
            [*additions, *outdated],
            commit_message=commit_message or f"RUDDER settings for {config.base_model_name_or_path}",
            commit_description=commit_description,
            revision=revision,
            create_pr=create_pr,
        )


@contextmanager
def _connected(endpoint: str, repo_id: str) -> Iterator[None]:
    """Raise a ConnectionError in plain words if the Hub cannot be reached. Its answers are passed on."""
    try:
        yield
    except Exception as error:
        # The HTTP library (httpx or httpx2) has no error in common with Python.
        if not type(error).__module__.startswith(("httpx", "httpcore")):
            raise
        raise ConnectionError(
            f"The Hub at {endpoint} cannot be reached, or closed the connection ({error or type(error).__name__}). "
            f"A push is one commit: {repo_id} has all of it or nothing. Push again when the Hub is back."
        ) from error


def _ready_repo(api: HfApi, repo_id: str, private: bool | None, revision: str | None) -> tuple[str, dict[str, str]]:
    """Make the repository if there is none, and return its full id and its files, with the texts that matter."""
    found: ModelInfo | None = None
    with suppress(RepositoryNotFoundError):
        # The client waits forever by default: a Hub that answers this request is there for the others.
        found = api.model_info(repo_id, timeout=_HUB_PATIENCE)
    if found is None or "/" not in repo_id:
        # A name without namespace is in the user's own, even if a repository of another owner is called so.
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        found = api.model_info(repo_id, timeout=_HUB_PATIENCE)
    if private and not found.private:
        raise ValueError(f"{repo_id} exists and is public: make it private in its settings on the Hub first.")
    if revision is not None and api.revision_exists(repo_id, revision):
        found = api.model_info(repo_id, revision=revision, timeout=_HUB_PATIENCE)
    files = dict.fromkeys((sibling.rfilename for sibling in found.siblings or []), "")
    for name in files.keys() & {"README.md", "config.json"}:
        path = api.hf_hub_download(repo_id, name, revision=found.sha)
        files[name] = Path(path).read_text("utf-8", errors="replace")
    foreign = sorted(files.keys() - _HARMLESS)
    if foreign and not is_settings(files.get("config.json", "")):
        raise ValueError(
            f"{repo_id} holds something else than RUDDER settings ({', '.join(foreign[:3])}), which a push could "
            "overwrite. Push settings to a repository of their own."
        )
    return repo_id, files


def check_shareable(config: RudderConfig, repo_id: str) -> None:
    """Raise a ValueError for settings that others could not use (no base on the Hub), or a `repo_id` that is none."""
    if not is_hub_id(repo_id):
        raise ValueError(f"repo_id is {repo_id!r}, but has to be 'namespace/name' (letters, digits, '-', '_', '.').")
    base = config.base_model_name_or_path
    if base is None or not is_on_hub(base):
        raise ValueError(
            f"The settings name {base!r} as their base model, which others cannot load: push them with the id of a "
            "model on the Hub (config.base_model_name_or_path = 'namespace/name')."
        )


def with_pinned_base(config: RudderConfig, token: str | bool | None = None) -> RudderConfig:
    """Return the settings with the commit of their base; unchanged if it is named already or cannot be found."""
    if config.base_model_revision is not None:
        return config
    commit = resolve_commit(str(config.base_model_name_or_path), None, token=token)
    if commit is None:
        logger.warning(f"The commit of {config.base_model_name_or_path} is not known: its revision is not pinned.")
        return config
    pinned = copy.deepcopy(config)
    pinned.base_model_revision = commit
    return pinned
