"""`report.md`: what was chosen, why, how sure that is, and what it does on held-out pictures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..evaluate.tables import markdown_table
from ..metrics.statistics import Counts, Metric, scores
from .format import OBJECTIVE_NAMES, name, number
from .outcome import Outcome
from .report_checks import fluency, held_out, pope, without_labels
from .selection import Candidate
from .store import UNSTEERED


def report(outcome: Outcome) -> str:
    """The report as Markdown."""
    parts = [
        _verdict(outcome),
        held_out(outcome),
        _certainty(outcome),
        pope(outcome),
        _limits(outcome),
        fluency(outcome),
        without_labels(outcome),
        _layers(outcome),
        *(_grids(outcome, layer) for layer in outcome.layers),
        _provenance(outcome),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(outcome: Outcome) -> str:
    choice = outcome.choice
    lines = ["# Calibration of RUDDER", "", f"Model: `{outcome.subject['name']}` ({outcome.subject['revision']})", ""]
    if choice.best is None:
        return "\n".join([*lines, f"**Nothing was chosen: {outcome.refusal}.**"])
    lines.append(f"**Chosen: {name(choice.best)}.**")
    lines.append("")
    lines.append(
        f"It has the least {OBJECTIVE_NAMES[outcome.objective]} of {len(outcome.counts) + len(outcome.dropped) - 1} "
        f"settings within the limits, on {len(outcome.choosing)} pictures: {_score(outcome, choice.score)} against "
        f"{_score(outcome, choice.vanilla)} of the unsteered model."
    )
    for mode, found in outcome.by_mode.items():
        if found.best != choice.best:
            lines += ["", f"Best with mode {mode}: {name(found.best)}, {_score(outcome, found.score)}."]
    if outcome.refusal:
        lines += ["", f"**These settings are not called calibrated: {outcome.refusal}.**"]
    return "\n".join(lines)


def _score(outcome: Outcome, value: float) -> str:
    return f"{value:.4f} nats" if outcome.objective == "grounding" else f"{100 * value:.1f} %"


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
        f"What each draw chose changes {OBJECTIVE_NAMES[outcome.objective]} by {scale * gain:.2f} "
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
        rows.append([name(candidate), *(number(metric, values[metric.name]) for metric in metrics)])
    pictures = len(next(iter(outcome.probes.values())).ids)
    table = markdown_table(["", *(metric.label for metric in metrics)], rows)
    return f"\n\nThe sweep, on {pictures} pictures:\n\n{table}"


def _grids(outcome: Outcome, layer: int) -> str:
    """Scores over alpha_max and k at a layer, one table for each combination of the other settings."""
    parts = [f"## Layer {layer}"]
    shown = ("chair_s", "chair_i", "recall", "log_likelihood") if outcome.labelled else ("grounding", "log_likelihood")
    for title, table in grid_tables(outcome, layer).items():
        for metric in outcome.metrics:
            if metric.name in shown:
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
        # Mode "add" has no gate, and so no k.
        k = setting.k if setting.mode == "beta" else 0.0
        found.setdefault(title, {})[setting.alpha_max, k] = (candidate, counts)
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
            text = number(metric, scores(counts, [metric])[metric.name])
            text = f"**{text}**" if candidate == outcome.choice.best else text
            row.append(text + mark(outcome, candidate))
        rows.append(row)
    return markdown_table([f"alpha_max \\ k (vanilla {number(metric, vanilla)})", *map(k_label, ks)], rows)


def k_label(k: float) -> str:
    """A column's heading."""
    return f"{k:g}" if k else "no gate"


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
