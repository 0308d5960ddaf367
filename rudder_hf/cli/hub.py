"""`rudder push` and `rudder search`: settings to and on the Hub."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import common

if TYPE_CHECKING:
    from ..core.configuration import RudderConfig
    from ..hub.search import Found

EXAMPLES = {
    "push": (
        "rudder push llava-1.5-7b my-name/llava-1.5-7b-rudder --dry-run",
        "rudder push llava-1.5-7b my-name/llava-1.5-7b-rudder --private",
        "rudder push my-settings my-org/my-model-rudder --create-pr",
    ),
    "search": (
        "rudder search llava-hf/llava-1.5-7b-hf",
        "rudder search llava-hf/llava-1.5-7b-hf --limit 5 --json",
    ),
}
CARD = "README.md"


def push_command(
    source: Annotated[
        str,
        typer.Argument(metavar="FOLDER_OR_PRESET", help="Folder with a config.json of RUDDER, or a preset's name."),
    ],
    repo_id: Annotated[
        str, typer.Argument(metavar="REPO_ID", help="Where to push: namespace/name, or name for your own namespace.")
    ],
    private: Annotated[
        bool | None,
        typer.Option("--private/--public", help="Access to a new repository.", show_default="your default"),
    ] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request instead of pushing.")] = False,
    token: Annotated[str | None, typer.Option(help="Token with write access.", show_default="the stored one")] = None,
    replace_card: Annotated[
        bool, typer.Option("--replace-card", help="Replace a card that was edited on the Hub.")
    ] = False,
    no_code: Annotated[
        bool, typer.Option("--no-code", help="Push config.json and card only, for users who have rudder_hf installed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show files and card; send nothing.")] = False,
) -> None:
    """Push settings to the Hub: config.json, the code that loads it, and a model card; no weights.

    A card (README.md) that you edited in the folder is pushed unchanged; otherwise a new one is written. One that was
    edited on the Hub is replaced with --replace-card only.
    """
    with common.refusing_bad_input():
        from ..hub.push import check_shareable, repo_files

        config, card = read_source(source)
        check_shareable(config, repo_id)
        files = repo_files(config, repo_id, card=card, code=not no_code)
    if dry_run:
        _show(config, repo_id, files)
        common.next_steps("the same command without --dry-run")
        return
    with common.reporting_failure():
        from huggingface_hub.errors import HfHubHTTPError

        from ..hub.push import push_repo

        options: dict[str, Any] = {"private": private, "create_pr": create_pr, "token": token}
        try:
            commit = push_repo(config, repo_id, card=card, replace_card=replace_card, code=not no_code, **options)
        except HfHubHTTPError as error:
            common.stop(_refusal(error, repo_id), common.FAILED)
        except ValueError as error:
            common.stop(error, common.BAD_INPUT)
    typer.echo(commit.pr_url or commit.commit_url)
    common.next_steps(f"rudder generate --model {repo_id}")


def read_source(source: str) -> tuple[RudderConfig, str | None]:
    """The settings in a folder or of a preset, and the folder's card if it was edited.

    Raises:
        ValueError: There is neither a folder with settings nor a preset of that name.
    """
    from ..hub.card import is_rendered
    from ..hub.loading import read_settings
    from ..presets import get_preset, list_presets

    folder = Path(source)
    if source in list_presets() and not folder.is_dir():
        return get_preset(source).config(), None
    if not folder.is_dir():
        raise ValueError(f"{source!r} is neither a folder nor a preset. Presets: {', '.join(list_presets())}.")
    if not (folder / "config.json").is_file():
        if (folder / "report.md").is_file():
            raise ValueError(f"{folder} is of a calibration that chose no settings to push: its report.md says why.")
        raise ValueError(f"There is no config.json in {folder}: save_pretrained writes one.")
    config = read_settings(folder)
    if config is None:
        raise ValueError(f"{folder} holds no RUDDER settings, but a model.")
    card = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else None
    return config, None if card is None or is_rendered(card) else card


def _show(config: RudderConfig, repo_id: str, files: dict[str, str]) -> None:
    """Print what would be pushed."""
    sizes = {name: len(text.encode()) for name, text in files.items()}
    typer.echo(f"Would push {len(files)} files, {sum(sizes.values()):,} bytes, to {repo_id}. Nothing was sent.")
    pinned = config.base_model_revision or "its present commit, looked up when pushing"
    typer.echo(f"base model: {config.base_model_name_or_path} at {pinned}\n")
    for name, size in sorted(sizes.items()):
        typer.echo(f"{size:>9,}  {name}")
    typer.echo(f"\n{files[CARD]}")


def _refusal(error: Exception, repo_id: str) -> str:
    """What the Hub's answer means for the user."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return f"You are not logged in to the Hub: log in with `hf auth login`, or pass --token, to push to {repo_id}."
    if status == 403:
        return f"Your token may not write to {repo_id}: it needs the role `write`, and you access to the namespace."
    return f"The Hub refused the push to {repo_id}: {error}"


def search_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id of the model that is to be steered.")],
    limit: Annotated[int, typer.Option(min=1, help="The most repositories to list.")] = 20,
    token: Annotated[str | None, typer.Option(help="For private repositories.", show_default="the stored one")] = None,
    as_json: common.JsonOption = False,
) -> None:
    """List settings on the Hub for a model, newest first: calibrated or not, strength, and held-out results.

    Results are what the owners of the repositories wrote into config.json. No code of theirs is run.
    """
    with common.refusing_bad_input():
        from ..hub.search import check_base_id, find_settings

        check_base_id(model)
    with common.reporting_failure():
        found = find_settings(model, limit, token)
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    if found:
        from ..runtime.report import Table

        headings = ["settings", "calibrated", "layer, strength", "held-out CHAIR_S, F1", "changed, downloads"]
        Table(headings, [_row(each) for each in found]).print()
    else:
        typer.echo(f"The Hub has no settings for {model}.")
    repo = next((each.repo for each in found if each.settings is not None), None)
    common.next_steps(
        f"rudder generate --model {repo}" if repo else f"rudder calibrate --model {model} --out calibration"
    )


def _row(found: Found) -> list[str]:
    from ..runtime.report import change_in_points

    strength, measured = "-", [change_in_points(change) for change in (found.chair_s, found.f1) if change]
    if found.settings is not None:
        strength = f"{found.settings['layer']}, {found.settings['alpha_max']:g}"
        contrast = found.settings["contrast"]
        strength += f", contrast {contrast:g}" if contrast else ""
    calibrated = "yes" if found.calibrated else "unreadable" if found.settings is None else "no"
    return [found.repo, calibrated, strength, ", ".join(measured) or "-", f"{found.changed}, {found.downloads}"]
