"""`report.md`: what was chosen, why, how sure that is, and what it does on held-out images.

It is made of `calibration.json` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..evaluate.statements import control_in_words
from ..runtime.report import Table, number, with_interval
from .choice import METRICS, OBJECTIVES, in_words
from .figures import Numbers, grids, mark, vanilla_row
from .settings import Setting
from .verdict import is_uncut, less_in_words, shown_in_words

_GLOSSARY = (
    "CHAIR_S: share of captions that name an object which is not in the image. CHAIR_I: share of such objects among "
    "all that are named. Recall: share of the objects in the image that are named. Precision: share of the "
    "kinds of object named that are in the image. F1: harmonic mean of precision and recall. Log-likelihood: how "
    "likely the answers are to the unsteered model, in nats per token; it falls when sentences break. Vanilla: the "
    "unsteered model; cut to the same recall: its captions, cut short until they name as many of the image's objects."
)
_GROUNDING = (
    "Grounding is how much likelier an answer is to the unsteered model given its own image than given another one, "
    "in nats per token: what is said from habit is as likely with any image, what is seen is not."
)
_BEYOND = "Beyond the paper: `contrast` is not in it, see docs/contrast.md."
_MAIN = ("chair_s", "chair_i", "recall", "f1", "grounding")
_COMPARED = (*_MAIN, "log_likelihood", "broken_sentences")
_REST = ("chair_i_distinct", "precision", "repeated_mentions", "length", "distinct_2", "repeated_sentences")
_SHOWN = (*_COMPARED, *_REST)


def report(numbers: Numbers) -> str:
    """The report as Markdown, from what `calibration.json` holds."""
    parts = [
        _verdict(numbers),
        _held_out(numbers),
        _certainty(numbers),
        _pope(numbers),
        _limits(numbers),
        _without_labels(numbers),
        _layers(numbers),
        _alone(numbers),
        *(
            f"## {', '.join([f'Layer {grid.layer}', *grid.rest])}\n\n"
            + _score_table([vanilla_row(numbers["settings"]), *grid.rows])
            for grid in grids(numbers["settings"])
        ),
        "† breaks a limit; § keeps the limits, but not safely; ‡ dropped early, on the images it got to; **bold**: "
        "chosen.",
        _provenance(numbers),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(numbers: Numbers) -> Iterable[str]:
    """What was chosen and what it does on the held-out images, line by line for the terminal."""
    yield f"Chosen: {_name(numbers['record']['settings'])}"
    for mode, setting in numbers["by_mode"].items():
        yield f"  best with mode {mode}: {_name(setting)}"
    if _contrasted(numbers["record"]["settings"]):
        yield f"  {_BEYOND}"
    row = _chosen_row(numbers)
    for name, change in row.get("minus_vanilla", {}).items():
        if name in _MAIN:
            left, right = (_shown(name, change[end]) for end in ("left", "right"))
            changed = _shown_interval(name, change, sign=True)
            yield f"  {METRICS[name].label}: {left} -> {right} ({changed}) on held-out images"
    if less := less_in_words(numbers["record"]["metric"], row):
        yield f"  {less}"
    if numbers["record"]["held_out_looks"] > 1:
        yield _looks(numbers)
    if not numbers["refusal"]:
        yield f"Called calibrated: {shown_in_words(numbers['record'], row)}."
        return
    yield f"Not called calibrated: {numbers['refusal']}."
    if numbers["record"]["settings"]:
        yield "The settings are written all the same, with this refusal in their record and on their card."


# Numbers


def _shown(name: str, value: float, sign: bool = False) -> str:
    """A value of a metric, in percent where that is its unit."""
    unit = METRICS[name].unit
    return number(100 * value if unit == "percent" else value, unit, sign)


def _shown_interval(name: str, estimate: Mapping[str, float], sign: bool = False) -> str:
    value, low, high = (_shown(name, estimate[end], sign) for end in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _some(scores: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Those of some metrics that were measured, in the order of all tables."""
    return [name for name in METRICS if name in names and name in scores]


def _score_table(rows: Sequence[dict[str, Any]]) -> str:
    """Settings with their scores, one column for each metric, and why they could not be chosen."""
    names = _some(rows[0]["scores"], _COMPARED)
    cells = []
    for row in rows:
        title = f"**{_name(row)}**" if row.get("chosen") else _name(row) + mark(row)
        cells.append([title, *(_shown(name, row["scores"][name]) for name in names)])
    return Table(["", *(METRICS[name].label for name in names)], cells).markdown()


def _objective(numbers: Numbers, value: float) -> str:
    return f"{value:.4f} nats" if numbers["record"]["metric"] == "grounding" else f"{100 * value:.1f} %"


def _looks(numbers: Numbers) -> str:
    times = numbers["record"]["held_out_looks"]
    return (
        f"{times} calibrations of this folder have looked at these held-out images: the more do, the likelier one of "
        "them finds a lucky choice. New ones come with another --check-data or --seed."
    )


def _name(setting: Mapping[str, Any] | None) -> str:
    return Setting.of(setting or {}).describe()


def _contrasted(setting: Mapping[str, Any] | None) -> bool:
    return Setting.of(setting or {}).contrast > 0


def _lent(setting: Mapping[str, Any]) -> str:
    """What another image lends in the control."""
    own = Setting.of(setting)
    return " and ".join(["CARD"] * bool(own.alpha_max) + ["values"] * bool(own.contrast))


def _chosen_row(numbers: Numbers) -> dict[str, Any]:
    """What the held-out images say of the choice; empty if there are none."""
    return next((row for row in numbers["held_out"] if row["chosen"]), {})


# Sections


def _verdict(numbers: Numbers) -> str:
    record, model, refused = numbers["record"], numbers["model"], numbers["refusal"]
    title = f"# Calibration of RUDDER\n\nModel: `{model['name']}` ({model['revision']})"
    if record["settings"] is None:
        return f"{title}\n\n**Nothing was chosen: {refused}.**"
    parts = [
        title,
        f"**Chosen: {_name(record['settings'])}.**",
        f"It has the {in_words(record['metric'])} of {len(numbers['settings']) - 1} settings within the limits, on "
        f"{len(record['images'])} images: {_objective(numbers, record['result'])} against "
        f"{_objective(numbers, record['baseline'])} of the unsteered model.",
    ]
    if _contrasted(record["settings"]):
        parts.append(f"**{_BEYOND}**")
    for mode, setting in numbers["by_mode"].items():
        if setting != record["settings"]:
            parts.append(f"Best with mode {mode}: {_name(setting)}.")
    if refused:
        parts.append(f"**These settings are not called calibrated: {refused}.**")
    else:
        parts.append(f"**These settings are called calibrated: {shown_in_words(record, _chosen_row(numbers))}.**")
    return "\n\n".join(parts)


def _held_out(numbers: Numbers) -> str:
    """Vanilla, the choice and its rivals on images that were not used for choosing, and their controls."""
    if not numbers["held_out"]:
        return ""
    names = _some(numbers["held_out"][0]["scores"], _SHOWN)
    why = {"chosen": numbers["record"]["settings"]}
    why |= {f"best {mode}": setting for mode, setting in numbers["by_mode"].items()}
    why |= {"best without labels": numbers["without_labels"]["chosen"]} if numbers["without_labels"] else {}
    looks = f"\n\n{_looks(numbers)}" if numbers["record"]["held_out_looks"] > 1 else ""
    less = f"\n\n{found}." if (found := less_in_words(numbers["record"]["metric"], _chosen_row(numbers))) else ""
    rows = []
    for row in numbers["held_out"]:
        scores, change = row["scores"], row.get("minus_vanilla")
        titles = ", ".join(title for title, setting in why.items() if setting and setting == row["settings"])
        title = _name(row["settings"]) + (f" ({titles})" if titles else "")
        if change is None:
            rows.append([title, *(_shown_interval(name, scores[name]) for name in names)])
        else:
            cells = [(_shown(n, scores[n]["value"]), _shown_interval(n, change[n], sign=True)) for n in names]
            rows.append([title, *(f"{value} ({difference})" for value, difference in cells)])
        if cut := row.get("minus_truncated"):
            control = control_in_words(is_uncut(row))
            rows += _control_rows(control, f"minus {control}", cut, names)
        if own := row.get("own_minus_other_card"):
            lent = _lent(row["settings"])
            rows += _control_rows(f"with another image's {lent}", f"own minus other {lent}", own, names)
    return (
        f"## On {len(numbers['record']['held_out_images'])} images that were not used for choosing\n\n"
        f"{Table(['', *(METRICS[name].label for name in names)], rows).markdown()}\n\n"
        "In parentheses the change against vanilla; in brackets 95 % bootstrap intervals over images, paired for "
        "differences. What another image's CARD does as well (own minus other near 0) is not about this image: "
        f"shorter captions, say. {_GLOSSARY}{less}{looks}"
    )


def _control_rows(title: str, minus: str, found: Mapping[str, Any], names: Sequence[str]) -> list[list[str]]:
    """A control's levels, and a setting minus it; empty where a metric is not known of it."""
    levels = (_shown(name, found[name]["left"]) if name in found else "" for name in names)
    changes = (_shown_interval(name, found[name], sign=True) if name in found else "" for name in names)
    return [[f"… {title}", *levels], [f"… {minus}", *changes]]


def _certainty(numbers: Numbers) -> str:
    record, settings = numbers["record"], numbers["settings"]
    wins = sorted((row for row in settings if row["won_draws"]), key=lambda row: -row["won_draws"])
    rows = [[_name(row), f"{100 * row['won_draws']:.1f} %"] for row in wins[:8]]
    scale = 1 if record["metric"] == "grounding" else 100
    gain, low, high = (scale * end for end in record["out_of_bag_change"])
    plateau = [_name(row) for row in settings if row["plateau"]]
    listed = "; ".join(plateau[:6]) + (f"; and {len(plateau) - 6} more" if len(plateau) > 6 else "")
    return (
        f"## How sure the choice is\n\nIn {numbers['bootstrap']} bootstrap draws of the images this would have "
        f"been chosen:\n\n{Table(['setting', 'draws'], rows).markdown()}\n\n"
        f"What each draw chose changes {OBJECTIVES[record['metric']].label} by "
        f"{with_interval(gain, low, high)} against vanilla on the images that were not in "
        "the draw: the gain to expect, without the optimism of choosing and measuring on the same images.\n\n"
        f"Plateau: {len(plateau)} other settings within the limits cannot be told from the chosen one (the paired 95 "
        f"% interval of the difference holds 0){': ' + listed if listed else ''}. Equal scores go to the gentler "
        "setting: lower alpha_max, then lower k."
    )


def _pope(numbers: Numbers) -> str:
    if not numbers["pope"]:
        return ""
    names = ("accuracy", "f1", "yes_ratio")
    rows = [
        [entry["setting"], *(f"{100 * entry['scores'][name]:.1f}" for name in names), entry["change"]]
        for entry in numbers["pope"]
    ]
    return (
        "## POPE, with the settings chosen on captions\n\n"
        f"{Table(['setting', 'accuracy', 'F1', 'yes', 'change of accuracy'], rows).markdown()}\n\n"
        "Paired 95 % bootstrap intervals over images. Settings that do not steer the first token cannot change an "
        "answer of one word: the first token comes from the last position of the prompt, which only "
        "`steer_first_token` steers. Their rows equal vanilla's unless answers are longer."
    )


def _limits(numbers: Numbers) -> str:
    limits, marks = numbers["record"]["limits"], [mark(row) for row in numbers["settings"]]
    name = "recall" if "recall_floor" in limits else "length"
    return (
        f"## Limits\n\nA setting has to keep: {name} at least {100 * limits[f'{name}_floor']:g} % of vanilla's; "
        f"negative log-likelihood per token under the unsteered model at most {limits['nll_rise']:g} nats above "
        f"vanilla's; share of distinct word pairs at most {100 * limits['distinct_drop']:g} points below vanilla's. "
        f"{marks.count('†')} settings broke one, {marks.count('‡')} more were dropped early, and {marks.count('§')} "
        f"more (§) kept them in less than {100 * limits['confidence']:g} % of the bootstrap draws: the best score "
        "lies at the edge of a limit, where luck decides on which side it is found."
    )


def _without_labels(numbers: Numbers) -> str:
    if not numbers["without_labels"]:
        return ""
    found = numbers["without_labels"]["agreement"]
    verdict = "good enough on this model" if found["good_enough"] else "**not good enough** on this model"
    return (
        f"## What the criterion without labels would have chosen\n\n{_GROUNDING} Where there are no labels, the most "
        "grounded setting within the limits of length and fluency is taken. Here that is "
        f"{_name(numbers['without_labels']['chosen'])}.\n\n"
        f"It keeps {100 * found['share_of_gain']:.0f} % of the gain of the choice with labels, at "
        f"{100 * found['recall']:.1f} % of vanilla's recall: {verdict} (asked for: 80 % of the gain within the recall "
        "floor). Settings chosen without labels are not called calibrated either way: on another model nothing is "
        "known."
    )


def _layers(numbers: Numbers) -> str:
    columns = {
        "alignment": "alignment", "specificity": "specificity", "update_norm": "‖δ‖", "leverage": "‖δ‖ / ‖h‖",
        "coherence": "coherence", "hidden_norm": "‖h‖",
    }  # fmt: skip
    tried = numbers["shortlist"]["layers"]
    rows = [
        [str(row["layer"]), *(f"{row[name]:.4g}" for name in columns), "yes" if row["layer"] in tried else ""]
        for row in numbers["layers"]
    ]
    table = Table(["layer", *columns.values(), "tried"], rows).markdown()
    text = f"## Layers\n\nTried: {numbers['shortlist']['reason']}.\n\n{table}"
    if not numbers["probes"]:
        return text
    sweep = _score_table(numbers["probes"])
    return f"{text}\n\nThe sweep, on {numbers['probes'][0]['images']} images:\n\n{sweep}"


def _alone(numbers: Numbers) -> str:
    """The contrasts without a push."""
    rows = [row for row in numbers["settings"] if not row.get("vanilla") and not row["alpha_max"]]
    if not rows:
        return ""
    table = _score_table([vanilla_row(numbers["settings"]), *rows])
    return f"## Image-value contrast alone (beyond the paper)\n\n{table}"


def _provenance(numbers: Numbers) -> str:
    record = numbers["record"]
    programs = ", ".join(f"{name} {record['versions'][name]}" for name in ("rudder_hf", "torch", "transformers"))
    data = ", ".join(f"{key} {value}" for key, value in record["data"].items())
    return (
        f"## Where this comes from\n\nPrompt: {record['prompt']!r}, greedy, at most {record['max_new_tokens']} new "
        f"tokens. Data: {data}. Ids of the images are in `calibration.json`. {programs}. {numbers['seconds']:.0f} s "
        f"in this run, {record['date']}."
    )
