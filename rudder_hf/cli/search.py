"""`rudder search`: settings on the Hub for a model."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from .common import copyable, next_steps, refusing_bad_input, reporting_failure
from .options import JsonOption

if TYPE_CHECKING:
    from ..hub.search import Found

EXAMPLES = copyable(
    "rudder search llava-hf/llava-1.5-7b-hf", "rudder search llava-hf/llava-1.5-7b-hf --limit 5 --json"
)


def search(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id of the model that is to be steered.")],
    limit: Annotated[int, typer.Option(min=1, help="The most repositories to list.")] = 20,
    token: Annotated[str | None, typer.Option(help="For private repositories.", show_default="the stored one")] = None,
    as_json: JsonOption = False,
) -> None:
    """List settings on the Hub for a model, newest first: calibrated or not, strength, and held-out results.

    Results are what the owners of the repositories wrote into config.json. No code of theirs is run.
    """
    with refusing_bad_input():
        from ..hub.search import check_base, find_settings

        check_base(model)
    with reporting_failure():
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
    next_steps(f"rudder generate --model {repo}" if repo else f"rudder calibrate --model {model} --out calibration")


def _row(found: Found) -> list[str]:
    from ..runtime.report import change_in_points

    strength, measured = "-", [change_in_points(change) for change in (found.chair_s, found.f1) if change]
    if found.settings is not None:
        strength = f"{found.settings['layer']}, {found.settings['alpha_max']:g}"
        contrast = found.settings["contrast"]
        strength += f", contrast {contrast:g}" if contrast else ""
    calibrated = "yes" if found.calibrated else "unreadable" if found.settings is None else "no"
    return [found.repo, calibrated, strength, ", ".join(measured) or "-", f"{found.changed}, {found.downloads}"]
