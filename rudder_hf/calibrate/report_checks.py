"""The parts of `report.md` about what the choice does elsewhere: held-out pictures, another CARD, no labels, POPE."""

from __future__ import annotations

from typing import Any

from ..evaluate.tables import markdown_table
from ..metrics.statistics import Metric, interval, scores
from .format import GLOSSARY, OBJECTIVE_NAMES, name, number, with_interval
from .outcome import Outcome
from .selection import Candidate
from .store import UNSTEERED

SHOWN = (
    "chair_s", "chair_i", "chair_i_distinct", "recall", "f1", "length", "log_likelihood", "distinct_2",
    "repeated_sentences", "broken_sentences", "grounding",
)  # fmt: skip
COMPARED = ("chair_s", "chair_i", "recall", "log_likelihood", "broken_sentences", "grounding")
GROUNDING_TEXT = (
    "Grounding is how much likelier an answer is to the unsteered model given its own picture than given another one, "
    "in nats per token: what is said from habit is as likely with any picture, what is seen is not."
)


def held_out(outcome: Outcome) -> str:
    """Vanilla and the choice on pictures that were not used for choosing; then its rivals."""
    best, own = outcome.choice.best, outcome.held_out.own
    if best is None or best not in own:
        return ""
    one, two = (interval(own[c], outcome.metrics, outcome.draws, outcome.seed) for c in (UNSTEERED, best))
    rows = []
    for metric in outcome.metrics:
        if metric.name in SHOWN:
            change = outcome.changes[best][metric.name]
            values = (with_interval(metric, one[metric.name]), with_interval(metric, two[metric.name]))
            rows.append([metric.label, *values, with_interval(metric, change, True), f"{change.p_value:.4f}"])
    table = markdown_table(["", "vanilla", "chosen", "difference", "p"], rows)
    return (
        f"## On {len(outcome.checking)} pictures that were not used for choosing\n\n{table}\n\n"
        f"95 % bootstrap intervals over pictures; differences are paired, p by permutation. {GLOSSARY}\n\n"
        f"{_rivals(outcome)}"
    )


def _rivals(outcome: Outcome) -> str:
    """All finalists in one table, each with the CARD of another picture beside its own."""
    metrics = _some(outcome, COMPARED)
    rows = []
    for candidate, counts in outcome.held_out.own.items():
        values = scores(counts, metrics)
        rows.append([_title(outcome, candidate), *(number(m, values[m.name]) for m in metrics)])
        if candidate in outcome.held_out.other:
            values = scores(outcome.held_out.other[candidate], metrics)
            rows.append(["… with another picture's CARD", *(number(m, values[m.name]) for m in metrics)])
    table = markdown_table(["", *(m.label for m in metrics)], rows)
    return f"The same pictures with the settings that came next:\n\n{table}\n\n{_specificity(outcome)}"


def _specificity(outcome: Outcome) -> str:
    """How much of the effect is about the picture."""
    best = outcome.choice.best
    if best is None or best not in outcome.specific:
        return ""
    rows = []
    for candidate, differences in outcome.specific.items():
        row = [_title(outcome, candidate)]
        for metric in _some(outcome, ("chair_s", "chair_i", "recall", "grounding")):
            whole, own = outcome.changes[candidate][metric.name], differences[metric.name]
            # A share of something that may be nothing says nothing.
            clear = whole.low > 0 or whole.high < 0
            part = f", {100 * own.value / whole.value + 0.0:.0f} %" if clear else ""
            row.append(with_interval(metric, own, True) + part)
        rows.append(row)
    headings = [metric.label for metric in _some(outcome, ("chair_s", "chair_i", "recall", "grounding"))]
    return (
        "How much of the effect is specific to the picture: settings with the picture's own CARD minus the same "
        "settings with another picture's, paired, and as a share of the whole effect where there is one. What another "
        "picture's CARD does as well (a share near 0 %) is not about this picture: shorter captions, say.\n\n"
        f"{markdown_table(['own minus other CARD', *headings], rows)}"
    )


def _title(outcome: Outcome, candidate: Candidate) -> str:
    titles = ["chosen"] if candidate == outcome.choice.best else []
    titles += [f"best {mode}" for mode, choice in outcome.by_mode.items() if choice.best == candidate]
    if outcome.without_labels is not None and outcome.without_labels.best == candidate:
        titles.append("best without labels")
    return name(candidate) + (f" ({', '.join(titles)})" if titles else "")


def without_labels(outcome: Outcome) -> str:
    """What the criterion without labels would have chosen, and whether that is good enough."""
    choice, found = outcome.without_labels, outcome.label_free
    if choice is None or found is None:
        return ""
    metrics = _some(outcome, ("chair_s", "chair_i", "recall", "grounding"))
    candidates: list[tuple[str, Candidate | None]] = [
        ("vanilla", None), ("chosen with labels", outcome.choice.best), ("chosen without labels", choice.best)
    ]  # fmt: skip
    rows = []
    for label, candidate in candidates:
        values = scores(outcome.counts[candidate or UNSTEERED], metrics)
        rows.append([label, name(candidate), *(number(m, values[m.name]) for m in metrics)])
    table = markdown_table(["", "setting", *(m.label for m in metrics)], rows)
    verdict = "good enough on this model" if found["good_enough"] else "**not good enough** on this model"
    ranks = "" if found["rank_correlation"] is None else (
        f" Over the {found['settings']} settings that it could choose from, the rank correlation of grounding with "
        f"the {OBJECTIVE_NAMES[outcome.objective]} is {found['rank_correlation']:.2f} (1 would be the same order)."
    )  # fmt: skip
    return (
        f"## What the criterion without labels would have chosen\n\n{GROUNDING_TEXT} Where there are no labels, the "
        "most grounded setting within the limits of length and fluency is taken.\n\n"
        f"{table}\n\nIt keeps {100 * found['share_of_gain']:.0f} % of the gain of the choice with labels, at "
        f"{100 * found['recall']:.1f} % of vanilla's recall: {verdict} (asked for: 80 % of the gain within the recall "
        f"floor).{ranks} Settings chosen without labels are not called calibrated either way: on another model nobody "
        "has looked."
    )


def fluency(outcome: Outcome) -> str:
    """Whether the fluency limit keeps out broken sentences, where those can be counted."""
    found = outcome.fluency
    if found is None:
        return ""
    rows = [
        [
            "none" if row["nll_rise"] is None else f"{row['nll_rise']:g}",
            str(row["settings"]),
            f"{100 * row['mean_broken']:.1f} %",
            f"{100 * row['most_broken']:.1f} %",
        ]
        for row in found["at_recall_floor"]
    ]
    headings = ["limit of the rise, nats per token", "settings within it and the recall floor", "broken", "most"]
    return (
        "## Does the fluency limit see broken sentences?\n\nThe scenes' captions come from a grammar, so that broken "
        f"sentences can be counted; vanilla has {100 * found['vanilla_broken']:.1f} %. Over {found['settings']} "
        "settings, the rank correlation of their share with the rise of the negative log-likelihood is "
        f"{found['rank_correlation']:.2f}.\n\n{markdown_table(headings, rows)}"
    )


def pope(outcome: Outcome) -> str:
    """The choice and its neighbours on yes/no questions."""
    if not outcome.pope:
        return ""
    rows = [
        [
            entry["setting"],
            *(f"{100 * entry['scores'][key]:.1f}" for key in ("accuracy", "f1", "yes_ratio")),
            entry["change"],
        ]
        for entry in outcome.pope
    ]
    table = markdown_table(["setting", "accuracy", "F1", "yes", "change of accuracy"], rows)
    return (
        "## POPE, with the settings chosen on captions\n\n"
        f"{table}\n\nPaired 95 % bootstrap intervals over pictures. Settings that do not steer the first token cannot "
        "change an answer of one word: the first token comes from the last position of the prompt, which only "
        "`steer_first_token` steers. Their rows equal vanilla's unless answers are longer."
    )


def _some(outcome: Outcome, names: tuple[str, ...]) -> list[Metric]:
    found: list[Any] = [metric for metric in outcome.metrics if metric.name in names]
    return found
