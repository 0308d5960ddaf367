"""`report.md`: what was chosen, why, how sure that is, and what it does on held-out images."""

from __future__ import annotations

from collections.abc import Sequence

from ..metrics.statistics import Counts, Difference, Estimate, Metric, interval, scores
from ..runtime.environment import versions
from ..runtime.report import Table, number, with_interval
from .figures import GridRows, grids, k_label, mark
from .outcome import Outcome
from .settings import VANILLA, Setting

_OBJECTIVES = {
    "chair_s": "CHAIR_S",
    "chair_i": "CHAIR_I",
    "mean": "mean of CHAIR_S and CHAIR_I",
    "grounding": "negative grounding",
}
_GLOSSARY = (
    "CHAIR_S: share of captions that name an object which is not in the image. CHAIR_I: share of such objects among "
    "all that are named. Recall: share of the objects in the image that are named. Log-likelihood: how likely the "
    "answers are to the unsteered model, in nats per token; it falls when sentences break. Vanilla: the unsteered "
    "model."
)
_GROUNDING = (
    "Grounding is how much likelier an answer is to the unsteered model given its own image than given another one, "
    "in nats per token: what is said from habit is as likely with any image, what is seen is not."
)
_MAIN = ("chair_s", "chair_i", "recall", "grounding")
_COMPARED = (*_MAIN, "log_likelihood", "broken_sentences")
_SHOWN = (*_COMPARED, "chair_i_distinct", "f1", "length", "distinct_2", "repeated_sentences")


def report(outcome: Outcome) -> str:
    """The report as Markdown."""
    parts = [
        _verdict(outcome),
        _held_out(outcome),
        _rivals(outcome),
        _certainty(outcome),
        _pope(outcome),
        _limits(outcome),
        _without_labels(outcome),
        _layers(outcome),
        *(_grid(outcome, grid) for grid in grids(outcome.tried())),
        "† breaks a limit; § keeps the limits, but not safely; ‡ dropped early, on the images it got to; **bold**: "
        "chosen.",
        _provenance(outcome),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


# Numbers


def shown(metric: Metric, value: float, sign: bool = False) -> str:
    """A value of a metric, in percent where that is its unit."""
    return number(_factor(metric) * value, metric.unit, sign)


def _shown_interval(metric: Metric, value: Estimate | Difference, sign: bool = False) -> str:
    factor = _factor(metric)
    return with_interval(factor * value.value, factor * value.low, factor * value.high, metric.unit, sign)


def _factor(metric: Metric) -> float:
    return 100.0 if metric.unit == "percent" else 1.0


def _some(outcome: Outcome, names: Sequence[str]) -> list[Metric]:
    return [metric for metric in outcome.metrics if metric.name in names]


def _scores(metrics: Sequence[Metric], counts: Counts) -> list[str]:
    values = scores(counts, metrics)
    return [shown(metric, values[metric.name]) for metric in metrics]


def _objective(outcome: Outcome, value: float) -> str:
    return f"{value:.4f} nats" if outcome.choice.objective == "grounding" else f"{100 * value:.1f} %"


def _name(setting: Setting | None) -> str:
    return (setting or VANILLA).describe()


# Sections


def _verdict(outcome: Outcome) -> str:
    choice, refusal = outcome.choice, outcome.refusal()
    model = f"# Calibration of RUDDER\n\nModel: `{outcome.model['name']}` ({outcome.model['revision']})"
    if choice.best is None:
        return f"{model}\n\n**Nothing was chosen: {refusal}.**"
    parts = [
        model,
        f"**Chosen: {_name(choice.best)}.**",
        f"It has the least {_OBJECTIVES[choice.objective]} of {len(outcome.counts) - 1} settings within the limits, "
        f"on {len(outcome.data.choosing)} images: {_objective(outcome, choice.score)} against "
        f"{_objective(outcome, choice.vanilla)} of the unsteered model.",
    ]
    for mode, found in outcome.by_mode.items():
        if found.best != choice.best:
            parts.append(f"Best with mode {mode}: {_name(found.best)}, {_objective(outcome, found.score)}.")
    if refusal:
        parts.append(f"**These settings are not called calibrated: {refusal}.**")
    return "\n\n".join(parts)


def _held_out(outcome: Outcome) -> str:
    """Vanilla and the choice on images that were not used for choosing."""
    best, own = outcome.choice.best, outcome.held_out
    if best is None or best not in own:
        return ""
    draws = (outcome.options.bootstrap, outcome.options.seed)
    one, two = (interval(own[setting], outcome.metrics, *draws) for setting in (VANILLA, best))
    rows = []
    for metric in _some(outcome, _SHOWN):
        change = outcome.changes[best][metric.name]
        values = (_shown_interval(metric, one[metric.name]), _shown_interval(metric, two[metric.name]))
        rows.append([metric.label, *values, _shown_interval(metric, change, sign=True), f"{change.p_value:.4f}"])
    return (
        f"## On {len(outcome.data.checking)} images that were not used for choosing\n\n"
        f"{Table(['', 'vanilla', 'chosen', 'difference', 'p'], rows).markdown()}\n\n"
        f"95 % bootstrap intervals over images; differences are paired, p by permutation. {_GLOSSARY}"
    )


def _title(outcome: Outcome, setting: Setting) -> str:
    """A finalist and why it is one."""
    titles = ["chosen"] if setting == outcome.choice.best else []
    titles += [f"best {mode}" for mode, choice in outcome.by_mode.items() if choice.best == setting]
    if outcome.without_labels is not None and outcome.without_labels.best == setting:
        titles.append("best without labels")
    return _name(setting) + (f" ({', '.join(titles)})" if titles else "")


def _rivals(outcome: Outcome) -> str:
    """All finalists in one table, each with the CARD of another image, and what is left of it then."""
    metrics = _some(outcome, _COMPARED)
    rows = []
    for setting, counts in outcome.held_out.items():
        rows.append([_title(outcome, setting), *_scores(metrics, counts)])
        if setting in outcome.other_card:
            rows.append(["… with another image's CARD", *_scores(metrics, outcome.other_card[setting])])
            own = outcome.specific[setting]
            rows.append(["… own minus other CARD", *(_shown_interval(m, own[m.name], sign=True) for m in metrics)])
    if not rows:
        return ""
    return (
        "The same images with the settings that came next, and with the CARD of another image, paired: what another "
        "image's CARD does as well (a difference near 0) is not about this image: shorter captions, say.\n\n"
        f"{Table(['', *(metric.label for metric in metrics)], rows).markdown()}"
    )


def _certainty(outcome: Outcome) -> str:
    choice = outcome.choice
    wins = sorted(choice.wins.items(), key=lambda item: -item[1])
    rows = [[_name(setting), f"{100 * share:.1f} %"] for setting, share in wins[:8]]
    scale = 1 if choice.objective == "grounding" else 100
    gain, low, high = (scale * end for end in choice.out_of_bag)
    plateau = [_name(setting) for setting in choice.plateau]
    listed = "; ".join(plateau[:6]) + (f"; and {len(plateau) - 6} more" if len(plateau) > 6 else "")
    return (
        f"## How sure the choice is\n\nIn {outcome.options.bootstrap} bootstrap draws of the images this would have "
        f"been chosen:\n\n{Table(['setting', 'draws'], rows).markdown()}\n\n"
        f"What each draw chose changes {_OBJECTIVES[choice.objective]} by "
        f"{with_interval(gain, low, high)} against vanilla on the images that were not in "
        "the draw: the gain to expect, without the optimism of choosing and measuring on the same images.\n\n"
        f"Plateau: {len(plateau)} other settings within the limits cannot be told from the chosen one (the paired 95 "
        f"% interval of the difference holds 0){': ' + listed if listed else ''}. Equal scores go to the gentler "
        "setting: lower alpha_max, then lower k."
    )


def _pope(outcome: Outcome) -> str:
    if not outcome.pope:
        return ""
    names = ("accuracy", "f1", "yes_ratio")
    rows = [
        [entry["setting"], *(f"{100 * entry['scores'][name]:.1f}" for name in names), entry["change"]]
        for entry in outcome.pope
    ]
    return (
        "## POPE, with the settings chosen on captions\n\n"
        f"{Table(['setting', 'accuracy', 'F1', 'yes', 'change of accuracy'], rows).markdown()}\n\n"
        "Paired 95 % bootstrap intervals over images. Settings that do not steer the first token cannot change an "
        "answer of one word: the first token comes from the last position of the prompt, which only "
        "`steer_first_token` steers. Their rows equal vanilla's unless answers are longer."
    )


def _limits(outcome: Outcome) -> str:
    limits, choice, options = outcome.options.limits, outcome.choice, outcome.options
    name, floor = ("recall", limits.recall_floor) if outcome.data.labelled else ("length", limits.length_floor)
    return (
        f"## Limits\n\nA setting has to keep: {name} at least {100 * floor:g} % of vanilla's; negative log-likelihood "
        f"per token under the unsteered model at most {limits.nll_rise:g} nats above vanilla's; share of distinct "
        f"word pairs at most {100 * limits.distinct_drop:g} points below vanilla's. {len(choice.broken)} settings "
        f"broke one, {len(outcome.dropped)} more were dropped early, and {len(choice.unsafe)} more (§) kept them in "
        f"less than {100 * options.confidence:g} % of the bootstrap draws: the best score lies at the edge of a "
        "limit, where luck decides on which side it is found."
    )


def _without_labels(outcome: Outcome) -> str:
    free, found = outcome.without_labels, outcome.label_free
    if free is None or found is None:
        return ""
    compared = {"vanilla": None, "chosen with labels": outcome.choice.best, "chosen without labels": free.best}
    metrics = _some(outcome, _MAIN)
    rows = [
        [title, _name(setting), *_scores(metrics, outcome.counts[setting or VANILLA])]
        for title, setting in compared.items()
    ]
    table = Table(["", "setting", *(metric.label for metric in metrics)], rows).markdown()
    verdict = "good enough on this model" if found["good_enough"] else "**not good enough** on this model"
    return (
        f"## What the criterion without labels would have chosen\n\n{_GROUNDING} Where there are no labels, the most "
        "grounded setting within the limits of length and fluency is taken.\n\n"
        f"{table}\n\n"
        f"It keeps {100 * found['share_of_gain']:.0f} % of the gain of the choice with labels, at "
        f"{100 * found['recall']:.1f} % of vanilla's recall: {verdict} (asked for: 80 % of the gain within the recall "
        "floor). Settings chosen without labels are not called calibrated either way: on another model nothing is "
        "known."
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
    text = f"## Layers\n\nTried: {outcome.reason}.\n\n{Table(headings, rows).markdown()}"
    if not outcome.probes:
        return text
    metrics = _some(outcome, _COMPARED)
    rows = [[_name(setting), *_scores(metrics, counts)] for setting, counts in outcome.probes.items()]
    sweep = Table(["", *(metric.label for metric in metrics)], rows).markdown()
    return f"{text}\n\nThe sweep, on {len(outcome.probes[VANILLA].ids)} images:\n\n{sweep}"


def _grid(outcome: Outcome, grid: GridRows) -> str:
    """Scores over alpha_max and k."""
    alphas, ks = (sorted({place[axis] for place in grid.cells}) for axis in (0, 1))

    def cell(metric: Metric, alpha: float, k: float) -> str:
        row = grid.cells.get((alpha, k))
        if row is None:
            return ""
        text = shown(metric, row["scores"][metric.name])
        return (f"**{text}**" if row["chosen"] else text) + mark(row)

    parts = [f"## {', '.join([f'Layer {grid.layer}', *grid.rest])}"]
    wanted = ("chair_s", "chair_i", "recall") if outcome.data.labelled else ("grounding",)
    for metric in _some(outcome, (*wanted, "log_likelihood")):
        (vanilla,) = _scores([metric], outcome.counts[VANILLA])
        rows = [[f"{alpha:.4g}", *(cell(metric, alpha, k) for k in ks)] for alpha in alphas]
        table = Table([f"alpha_max \\ k (vanilla {vanilla})", *map(k_label, ks)], rows)
        parts.append(f"{metric.label}:\n\n{table.markdown()}")
    return "\n\n".join(parts)


def _provenance(outcome: Outcome) -> str:
    record, known = outcome.calibration_record(), versions()
    programs = ", ".join(f"{name} {known[name]}" for name in ("rudder_hf", "torch", "transformers"))
    data = ", ".join(f"{key} {value}" for key, value in record["data"].items())
    return (
        f"## Where this comes from\n\nPrompt: {record['prompt']!r}, greedy, at most {record['max_new_tokens']} new "
        f"tokens. Data: {data}. Ids of the images are in `calibration.json`. {programs}. {outcome.seconds:.0f} s in "
        f"this run, {outcome.finished}."
    )
