"""What the report says about each figure: what it shows, and what it does not support."""

from __future__ import annotations

from typing import Any


def _interval(ends: list[float], digits: int = 2) -> str:
    return f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"


def layers(numbers: dict[str, Any]) -> tuple[str, str]:
    """On the layer dynamics."""
    peak = max(numbers["layers"], key=lambda row: row["update_norm"])
    relative = max(numbers["layers"], key=lambda row: row["leverage"])
    return (
        f"What self-attention adds to the residual stream, averaged over the prompts of {numbers['pictures']} "
        f"pictures: its length is largest in layer {peak['layer']}, relative to the hidden state in layer "
        f"{relative['layer']}. Coherence is the mean cosine between a layer's CARD and those of the other layers of "
        "its group.",
        "A long update is room to act, not evidence that acting there helps: which layer reduces hallucination is a "
        "matter of measurement (the layer ablation). Nothing here looks at answers.",
    )


def rotation(numbers: dict[str, Any]) -> tuple[str, str]:
    """On rotation and alignment gain."""
    turned, gain = numbers["rotation_degrees"], numbers["alignment_gain"]
    others = numbers.get("between_pictures_degrees")
    one = numbers["distinct_text_only"] == 1
    shared = (
        " All pictures were asked with one prompt, so that there is a single text-only CARD, and all spread comes "
        "from the pictures."
        if one
        else f" There are {numbers['distinct_text_only']} different text-only CARDs."
    )
    between = (
        f" CARDs of two different pictures are {others['mean']:.1f}° apart, and the mean direction of all pictures is "
        f"{numbers['common_rotation_degrees']:.1f}° from the text-only one: so much of the turn is common to all "
        "pictures."
        if others
        else ""
    )
    return (
        f"The picture turns CARD by {turned['mean']:.1f}° on average {_interval(turned['interval'], 1)} "
        f"(median {turned['median']:.1f}°); alignment gain {gain['mean']:.3f} {_interval(gain['interval'], 3)}."
        f"{shared}{between}",
        "Alignment gain is no evidence: the steering vector is parallel to CARD, so that the gain is "
        f"1 - cos(rotation) by construction (largest deviation here {numbers['gain_minus_one_minus_cos']:.0e}). "
        "A rotation alone says that the picture changes CARD, as any input would; whether the change is about the "
        "picture's content is asked below, by probe, neighbours and categories.",
    )


def maps(numbers: dict[str, Any]) -> tuple[str, str]:
    """On the t-SNE maps."""
    text = numbers["overlay"]["text"] if numbers["overlay"] else []
    single = (
        " The text-only CARD is one point, because all pictures were asked with one prompt." if len(text) == 1 else ""
    )
    return (
        "Image-conditioned CARD (left) and mean steering vectors (right), PCA to 50 dimensions and then t-SNE; shapes "
        f"and colours are KMeans clusters of the steering vectors in the original space.{single}",
        "t-SNE keeps neighbourhoods, not distances, sizes or directions: the length of a line is no angle, and gaps "
        "between groups can be made by the method. No number of this report is computed from these coordinates.",
    )


def clusters(numbers: dict[str, Any]) -> tuple[str, str]:
    """On KMeans and silhouettes."""
    chance = numbers["silhouette_without_clusters"]
    mean = sum(chance) / len(chance)
    verdict = "above" if numbers["silhouette"] > max(chance) else "not above"
    return (
        f"KMeans on the steering vectors has its best silhouette, {numbers['silhouette']:.3f}, at K = {numbers['k']}; "
        f"that is {verdict} what the same search finds in normal clouds of the same spread without any clusters "
        f"({mean:.3f} on average, at most {max(chance):.3f}). CARD itself: {numbers['card_silhouette']:.3f}. Bars are "
        f"means by cluster, whiskers standard deviations.{_typical(numbers['clusters'])}",
        "KMeans always finds clusters; a small silhouette means no separate groups. That statistics stay similar in "
        "all clusters says nothing about whether the clusters mean something.",
    )


def _typical(rows: list[dict[str, Any]]) -> str:
    """Objects that are more frequent in a cluster than elsewhere."""
    told = [
        f"cluster {row['cluster']}: " + ", ".join(
            f"{entry['object']} ({100 * entry['share']:.0f} % against {100 * entry['share_of_all']:.0f} % of all)"
            for entry in row["typical_objects"]
        )
        for row in rows
        if row.get("typical_objects")
    ]  # fmt: skip
    return f" More frequent than elsewhere in {'; '.join(told)}." if told else ""


def evidence(numbers: dict[str, Any]) -> tuple[str, str]:
    """On probe and neighbours."""
    parts = []
    probe, near = numbers["probe"], numbers["neighbours"]
    if probe is not None:
        chance = sum(probe["shuffled_mean_auc"]) / len(probe["shuffled_mean_auc"])
        text = "" if probe["text_only_mean_auc"] is None else f", text-only CARD {probe['text_only_mean_auc']:.2f}"
        parts.append(
            f"A linear probe reads from CARD which of {probe['objects']} objects are in a held-out picture with a "
            f"mean AUC of {probe['mean_auc']:.2f} {_interval(probe['interval_over_objects'])} (interval over objects; "
            f"with shuffled pictures {chance:.2f}{text})."
        )
    if near is not None:
        parts.append(
            f"The {near['neighbours']} nearest pictures by CARD share {near['shared']:.3f} of their objects (Jaccard "
            f"index), any others {near['chance']:.3f} (p = {near['p_value']:.3f}, {near['permutations']} shuffles)."
        )
    return (
        " ".join(parts),
        "That objects can be read from CARD does not show that the model uses them, nor that adding CARD helps. "
        "Objects occur together and go with places, so that part of this may be the scene and not the object.",
    )


def semantic(numbers: dict[str, Any]) -> tuple[str, str]:
    """On clusters by category."""
    low, high = numbers["chance_interval"]
    beyond = "beyond" if numbers["silhouette"] > high else "within"
    return (
        f"Pictures with exactly one of {', '.join(numbers['categories'])}: the silhouette of CARD by category is "
        f"{numbers['silhouette']:.3f}, {beyond} what shuffled labels give ({low:.3f} to {high:.3f}, "
        f"p = {numbers['p_value']:.3f}, {numbers['permutations']} shuffles).",
        "A silhouette near 0 means that categories overlap widely even if they can be told from chance; the map may "
        "look more or less separate than the space is. Pictures hold other objects too, and other categories may "
        "behave otherwise.",
    )


def tokens(numbers: dict[str, Any]) -> tuple[str, str]:
    """On the token view."""
    return (
        "Each token on a shade of what RUDDER measured at the hidden state that wrote it. Left the unsteered answer, "
        "right the steered one; for the unsteered answer the gate is the one that these states would have opened. "
        "The first token has gate 0 where `steer_first_token` is off. "
        f"The figure's picture is {numbers['figure_chosen']}.",
        "Single pictures illustrate and prove nothing; shades differ from token to token for grammatical reasons too. "
        "Whether low values go with hallucinated objects is measured by the detector, over all pictures.",
    )


def detector(numbers: dict[str, Any]) -> tuple[str, str]:
    """On the detectors."""
    parts = []
    for name, text in (("vanilla", "vanilla"), ("steered", "RUDDER")):
        if not numbers.get(name):
            continue
        scores = numbers[name]["scores"]
        told = ", ".join(
            f"{label} {scores[key]['auc']:.2f} {_interval(scores[key]['interval'])}"
            for key, label in (
                ("similarity", "CARD similarity"),
                ("gate", "gate"),
                ("probability", "token probability"),
            )
        )
        against = scores["similarity"]["minus_probability"]
        parts.append(
            f"In the {text} answers: {told}; similarity minus probability {against['value']:+.2f} "
            f"{_interval(against['interval'])}; the place in the answer alone {scores['earliness']['auc']:.2f}."
        )
    return (
        "AUC is the chance that a grounded mention has a larger value than a hallucinated one; intervals are 95 % "
        "bootstrap intervals over pictures. " + " ".join(parts),
        "The gate is a growing function of the similarity, so that it can detect nothing that the similarity does not "
        "(they differ where the gate is clamped, and over tokens of long names). Hallucinations come late in answers: "
        "a score that is no better than the place in the answer may know nothing but the place. A detector on these "
        "pictures is not one for others.",
    )


def sweep(numbers: dict[str, Any]) -> tuple[str, str]:
    """On the layer ablation."""
    best = min(
        ((setting["chair_s"], row["layer"]) for row in numbers["layers"] for setting in row["settings"]),
    )
    return (
        f"Scores when each layer is steered in turn, at the sweep's settings; least CHAIR_S {best[0]:.1f} in layer "
        f"{best[1]}, against {numbers['vanilla']['chair_s']:.1f} unsteered. Strength is relative to each layer's "
        "hidden states.",
        f"{numbers['pictures']} pictures are few, and the best of many bars is partly luck: the calibration's report "
        "has the choice on more pictures and its check on others. A low CHAIR with a low recall is no gain.",
    )


def grid(numbers: dict[str, Any], shown: dict[str, Any]) -> tuple[str, str]:
    """On a heatmap."""
    where = "the chosen layer" if shown["chosen"] else "another layer that was tried"
    return (
        f"CHAIR_S and CHAIR_I (less is better) and recall (more is better) over strength and sensitivity in layer "
        f"{shown['layer']}, {where}; darker is better in each.",
        "These are the pictures that the setting was chosen on, so that the best cell flatters itself; neighbouring "
        "cells often cannot be told apart (see the plateau in the calibration's report).",
    )


def pope(numbers: dict[str, Any]) -> tuple[str, str]:
    """On POPE around the choice."""
    vanilla, rest = numbers["pope"][0], numbers["pope"][1:]
    moved = [row for row in rest if row["steer_first_token"]]
    spread = (
        f"steering it gives accuracies of {min(r['accuracy'] for r in moved):.1f} to "
        f"{max(r['accuracy'] for r in moved):.1f}"
        if moved
        else "no setting that steers it was asked"
    )
    return (
        f"Yes/no questions with the chosen setting and its neighbours; vanilla has an accuracy of "
        f"{vanilla['accuracy']:.1f}. Settings that leave the first token unsteered cannot change a one-word answer; "
        f"{spread}.",
        "Settings that equal vanilla are no sign of robustness: they do not act on one-word answers at all. Intervals "
        "are in the calibration's report.",
    )
