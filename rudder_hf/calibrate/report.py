"""What a calibration writes: the settings repository with `report.md`, and the lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..core.configuration import RudderConfig
from ..evaluate.tables import full_table, notes, short_table
from ..hub.push import write_repo
from ..runtime.report import Table, change_in_points
from ..runtime.store import numbered_path, write_over
from .choice import METRICS, in_words, shown_in_words
from .run import Outcome
from .search import describe

REPORT = "report.md"
_MAIN = ("chair_s", "chair_i", "recall", "f1", "grounding")


def config_of(outcome: Outcome, base_model: str | None, revision: str | None) -> RudderConfig:
    """The chosen settings, with the record of how they were found and of what they lack to be called calibrated.

    Args:
        outcome: What was found.
        base_model: Hub id or folder of the model.
        revision: Its commit, if it has one.

    Raises:
        ValueError: Nothing was chosen.
    """
    record = outcome.record
    if outcome.best is None:
        raise ValueError(f"There are no settings to write: {record['refusal']}.")
    # A record stands for the model that it names, so it names it as the config does.
    model = record["model"] | ({"name": base_model} if base_model else {})
    return RudderConfig(
        base_model_name_or_path=base_model,
        base_model_revision=revision,
        **record["settings"],
        calibration=record | {"model": model},
    )


def save_outcome(outcome: Outcome, out: Path, base_model: str | None, revision: str | None) -> Path:
    """Write the settings repository and the report into a new numbered folder below `out`.

    A folder that says the same already is returned instead.
    """
    text = report_markdown(outcome)
    for path in sorted(out.glob(f"result-*/{REPORT}")):
        if path.read_text(encoding="utf-8") == text:
            return path.parent
    folder = numbered_path(out, "result")
    folder.mkdir(parents=True)
    if outcome.best is not None:
        write_repo(config_of(outcome, base_model, revision), folder)
    write_over(folder / REPORT, text)
    return folder


def outcome_lines(outcome: Outcome) -> Iterable[str]:
    """What was chosen and what it does on the held-out images, line by line for the terminal."""
    record = outcome.record
    yield f"Chosen: {'nothing' if outcome.best is None else describe(outcome.best)}"
    for name in _MAIN:
        if change := record.get("held_out", {}).get(name):
            unit = 100 if METRICS[name].unit == "percent" else 1
            changed = change_in_points(change) if unit == 100 else f"{change['value']:+.3f}"
            yield f"  {METRICS[name].label}: {unit * change['left']:.1f} -> {unit * change['right']:.1f} ({changed})"
    if record["refusal"]:
        yield f"Not called calibrated: {record['refusal']}."
        if outcome.best is not None:
            yield "The settings are written all the same, with this refusal in their record and on their card."
    else:
        yield f"Called calibrated: {shown_in_words(record)}."


def report_markdown(outcome: Outcome) -> str:
    """`report.md`: what was chosen, what it does on held-out images, and what else was tried."""
    record = outcome.record
    parts = [
        f"# Calibration of RUDDER\n\nModel: `{record['model']['name']}` ({record['model']['revision']})",
        "\n".join(f"- {line.strip()}" for line in outcome_lines(outcome)),
        f"The choice is the {in_words(record['metric'])} of {len(outcome.tried)} candidates within the limits on "
        f"{len(record['images'])} images: {record['result']:.4f}, the unsteered model {record['baseline']:.4f}.",
    ]
    if outcome.checking is not None:
        parts.append(f"## On {len(record['held_out_images'])} images that were not used for choosing")
        parts += [full_table(outcome.checking).markdown(), *outcome.checking.notes, *notes(outcome.checking)]
        parts.append("An effect that the control has too is not specific to the image.")
    reasons = {describe(outcome.tried[place]): ", ".join(found) for place, found in outcome.choice.broken.items()}
    table = short_table(outcome.choosing)
    rows = [[row[0], *(cell.split(" ")[0] for cell in row[1:]), reasons.get(row[0], "")] for row in table.rows]
    parts += ["## Candidates, the weakest first", Table([*table.headings, "breaks"], rows).markdown()]
    data = ", ".join(f"{key} {value}" for key, value in record["data"].items())
    parts.append(
        f"## Where this comes from\n\nPrompt: {record['prompt']!r}, greedy, at most {record['max_new_tokens']} new "
        f"tokens. Data: {data}. Layers: {outcome.reason}. Answers and all numbers: `choosing/` and "
        "`checking/` beside this folder."
    )
    return "\n\n".join(parts) + "\n"
