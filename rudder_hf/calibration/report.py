"""`report.md`: what was chosen, why, how sure that is, and what it does on held-out pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..evaluation.statistics import Counts, Metric, interval, scores
from ..evaluation.tables import markdown_table
from .outcome import Outcome
from .selection import Candidate
from .store import UNSTEERED

SHOWN = (
    "chair_s", "chair_i", "chair_i_distinct", "recall", "f1", "length", "log_likelihood", "distinct_2",
    "repeated_sentences", "broken_sentences", "grounding",
)  # fmt: skip


def report(outcome: Outcome) -> str:
    """The report as Markdown."""
    parts = [
        _verdict(outcome),
        _held_out(outcome),
        _certainty(outcome),
        _layers(outcome),
        *(_grids(outcome, layer) for layer in outcome.layers),
        _limits(outcome),
        _without_labels(outcome),
        _pope(outcome),
        _provenance(outcome),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def name(candidate: Candidate | None) -> str:
    """A candidate in words."""
    if candidate is None or candidate == UNSTEERED:
        return "vanilla"
    return f"layer {candidate[0]}, {candidate[1].describe()}"


def _number(metric: Metric, value: float) -> str:
    return (
        f"{100 * value:.1f}"
        if metric.unit == "percent"
        else f"{value:.3f}"
        if metric.unit == "nats"
        else f"{value:.1f}"
    )


def _verdict(outcome: Outcome) -> str:
    choice = outcome.choice
    lines = ["# Calibration of RUDDER", "", f"Model: `{outcome.subject['name']}` ({outcome.subject['revision']})", ""]
    if choice.best is None:
        return "\n".join([*lines, f"**Nothing was chosen: {outcome.refusal}.**"])
    lines.append(f"**Chosen: {name(choice.best)}.**")
    lines.append("")
    lines.append(
        f"It has the least {_objective(outcome.objective)} of {len(outcome.counts) + len(outcome.dropped) - 1} "
        f"settings within the limits, on {len(outcome.choosing)} pictures: {_score(outcome, choice.score)} against "
        f"{_score(outcome, choice.vanilla)} of the unsteered model."
    )
    if outcome.refusal:
        lines += ["", f"**These settings are not called calibrated: {outcome.refusal}.**"]
    return "\n".join(lines)


def _objective(objective: str) -> str:
    return {
        "chair_s": "CHAIR_S",
        "chair_i": "CHAIR_I",
        "mean": "mean of CHAIR_S and CHAIR_I",
        "grounding": "negative grounding",
    }[objective]


def _score(outcome: Outcome, value: float) -> str:
    return f"{value:.4f} nats" if outcome.objective == "grounding" else f"{100 * value:.1f} %"


def _held_out(outcome: Outcome) -> str:
    if outcome.checked is None:
        return ""
    one, two = (interval(counts, outcome.metrics, outcome.draws, outcome.seed) for counts in outcome.checked)
    rows = []
    for metric in outcome.metrics:
        if metric.name not in SHOWN:
            continue
        change = outcome.differences[metric.name]
        left, right = one[metric.name], two[metric.name]
        rows.append(
            [
                metric.label,
                f"{_number(metric, left.value)} [{_number(metric, left.low)}, {_number(metric, left.high)}]",
                f"{_number(metric, right.value)} [{_number(metric, right.low)}, {_number(metric, right.high)}]",
                f"{_number(metric, change.value)} [{_number(metric, change.low)}, {_number(metric, change.high)}]",
                f"{change.p_value:.4f}",
            ]
        )
    table = markdown_table(["", "vanilla", "chosen", "difference", "p"], rows)
    return (
        f"## On {len(outcome.checking)} pictures that were not used for choosing\n\n{table}\n\n"
        "95 % bootstrap intervals over pictures; differences are paired, p by permutation."
    )


def _certainty(outcome: Outcome) -> str:
    choice = outcome.choice
    wins = sorted(choice.wins.items(), key=lambda item: -item[1])
    rows = [[name(candidate), f"{100 * share:.1f} %"] for candidate, share in wins[:8]]
    gain, low, high = choice.out_of_bag
    scale = 1 if outcome.objective == "grounding" else 100
    plateau = _listed([name(candidate) for candidate in choice.plateau])
    return (
        f"## How sure the choice is\n\nIn {outcome.draws} bootstrap draws of the pictures this would have been "
        f"chosen:\n\n{markdown_table(['setting', 'draws'], rows)}\n\n"
        f"What each draw chose changes {_objective(outcome.objective)} by {scale * gain:.2f} "
        f"[{scale * low:.2f}, {scale * high:.2f}] against vanilla on the pictures that were not in the draw: the gain "
        "to expect, without the optimism of choosing and measuring on the same pictures.\n\n"
        f"Plateau: {len(choice.plateau)} other settings within the limits cannot be told from the chosen one "
        f"(the paired 95 % interval of the difference holds 0){': ' + plateau if plateau else ''}. Equal scores go to "
        "the gentler setting: lower alpha_max, then lower k."
    )


def _layers(outcome: Outcome) -> str:
    headings = ["layer", "alignment", "specificity", "‖δ‖", "‖δ‖ / ‖h‖", "coherence", "‖h‖", "tried"]
    rows = [
        [
            str(s.layer), f"{s.alignment:.3f}", f"{s.specificity:.3f}", f"{s.update_norm:.3g}", f"{s.leverage:.3f}",
            f"{s.coherence:.3f}", f"{s.hidden_norm:.4g}", "yes" if s.layer in outcome.layers else "",
        ]
        for s in outcome.statistics
    ]  # fmt: skip
    return f"## Layers\n\nTried: {outcome.reason}.\n\n{markdown_table(headings, rows)}{_probes(outcome)}"


def _probes(outcome: Outcome) -> str:
    """Scores of the sweep over all layers."""
    if not outcome.probes:
        return ""
    metrics = [m for m in outcome.metrics if m.name in ("chair_s", "chair_i", "recall", "log_likelihood", "grounding")]
    rows = []
    for candidate, counts in outcome.probes.items():
        values = scores(counts, metrics)
        rows.append([name(candidate), *(_number(metric, values[metric.name]) for metric in metrics)])
    pictures = len(next(iter(outcome.probes.values())).ids)
    table = markdown_table(["", *(metric.label for metric in metrics)], rows)
    return f"\n\nThe sweep, on {pictures} pictures:\n\n{table}"


def _grids(outcome: Outcome, layer: int) -> str:
    """Scores over alpha_max and k at a layer, one table for each combination of the other settings."""
    parts = [f"## Layer {layer}"]
    for title, table in grid_tables(outcome, layer).items():
        for metric in outcome.metrics:
            if metric.name in ("chair_s", "chair_i", "recall", "grounding", "log_likelihood"):
                parts.append(f"{metric.label}{title}:\n\n{_table(outcome, table, metric)}")
    parts.append(
        "† breaks a limit; § keeps the limits, but not safely; ‡ dropped early, on the pictures it got to; "
        "**bold**: chosen."
    )
    return "\n\n".join(parts)


Table = dict[tuple[float, float], tuple[Candidate, Counts]]


def grid_tables(outcome: Outcome, layer: int) -> dict[str, Table]:
    """By what else the settings have in common: candidates by alpha_max and k."""
    found: dict[str, Table] = {}
    for candidate, counts in {**outcome.counts, **outcome.partial}.items():
        if candidate[0] != layer or candidate == UNSTEERED:
            continue
        setting = candidate[1]
        rest = [part for part in setting.describe().split(", ") if not part.startswith(("alpha_max", "k "))]
        title = f" ({', '.join(rest)})" if rest else ""
        found.setdefault(title, {})[setting.alpha_max, setting.k] = (candidate, counts)
    return found


def _table(outcome: Outcome, table: Table, metric: Metric) -> str:
    ks = sorted({k for _, k in table})
    vanilla = scores(outcome.counts[UNSTEERED], [metric])[metric.name]
    rows = []
    for alpha in sorted({alpha for alpha, _ in table}):
        row = [f"{alpha:.4g}"]
        for k in ks:
            if (alpha, k) not in table:
                row.append("")
                continue
            candidate, counts = table[alpha, k]
            text = _number(metric, scores(counts, [metric])[metric.name])
            text = f"**{text}**" if candidate == outcome.choice.best else text
            row.append(text + mark(outcome, candidate))
        rows.append(row)
    return markdown_table([f"alpha_max \\ k (vanilla {_number(metric, vanilla)})", *(f"{k:g}" for k in ks)], rows)


def mark(outcome: Outcome, candidate: Candidate) -> str:
    """Why a candidate could not be chosen, as a sign."""
    signs = (("‡", outcome.dropped), ("†", outcome.choice.broken), ("§", outcome.choice.unsafe))
    return next((sign for sign, candidates in signs if candidate in candidates), "")


def _limits(outcome: Outcome) -> str:
    limits = outcome.limits
    first = (
        f"recall at least {100 * limits.recall_floor:g} % of vanilla's"
        if outcome.labelled
        else f"length at least {100 * limits.length_floor:g} % of vanilla's"
    )
    return (
        f"## Limits\n\nA setting has to keep: {first}; negative log-likelihood per token under the unsteered model at "
        f"most {limits.nll_rise:g} nats above vanilla's; share of distinct word pairs at most "
        f"{100 * limits.distinct_drop:g} points below vanilla's. {len(outcome.choice.broken)} settings broke one, "
        f"{len(outcome.dropped)} more were dropped early, and {len(outcome.choice.unsafe)} more (§) kept them in less "
        f"than {100 * outcome.confidence:g} % of the bootstrap draws: the best score lies at the edge of a limit, "
        "where luck decides on which side it is found."
    )


def _without_labels(outcome: Outcome) -> str:
    choice = outcome.without_labels
    if choice is None or outcome.objective == "grounding":
        return ""
    wanted = [metric for metric in outcome.metrics if metric.name in ("chair_s", "chair_i", "recall")]
    candidates: list[tuple[str, Candidate | None]] = [
        ("vanilla", None), ("chosen with labels", outcome.choice.best), ("chosen without labels", choice.best)
    ]  # fmt: skip
    rows = [[label, name(candidate), *_scores(outcome, wanted, candidate)] for label, candidate in candidates]
    table = markdown_table(["", "setting", *(metric.label for metric in wanted)], rows)
    return f"## What the criterion without labels would have chosen\n\n{GROUNDING_TEXT}\n\n{table}"


GROUNDING_TEXT = (
    "Grounding is how much likelier an answer is to the unsteered model given its own picture than given another one, "
    "in nats per token: what is said from habit is as likely with any picture, what is seen is not."
)


def _scores(outcome: Outcome, metrics: Sequence[Metric], candidate: Candidate | None) -> list[str]:
    values = scores(outcome.counts[candidate or UNSTEERED], metrics)
    return [_number(metric, values[metric.name]) for metric in metrics]


def _pope(outcome: Outcome) -> str:
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
        "change a one-word answer."
    )


def _provenance(outcome: Outcome) -> str:
    versions: dict[str, Any] = outcome.environment["versions"]
    told = ", ".join(f"{key} {versions[key]}" for key in ("rudder_hf", "torch", "transformers") if versions.get(key))
    data = ", ".join(f"{key} {value}" for key, value in outcome.data.items())
    return (
        f"## Where this comes from\n\nPrompt: {outcome.prompt!r}, greedy, at most {outcome.max_new_tokens} new "
        f"tokens. Data: {data}. Ids of the pictures are in `calibration.json`. {told}. {outcome.seconds:.0f} s in "
        f"this run, {outcome.finished}."
    )


def _listed(texts: Iterable[str], limit: int = 6) -> str:
    found = list(texts)
    return "; ".join(found[:limit]) + (f"; and {len(found) - limit} more" if len(found) > limit else "")
