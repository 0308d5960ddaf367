"""Layer dynamics: statistics of every layer's attention update, and by group of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..calibrate.layers import LayerStatistics, layer_groups

SHOWN = ("update_norm", "leverage", "coherence", "concentration", "alignment", "specificity")


def dynamics(statistics: Sequence[LayerStatistics], pictures: int, layer: int) -> dict[str, Any]:
    """Statistics by layer, and their means over quarters of the depth.

    Args:
        statistics: From `layer_statistics`.
        pictures: How many they are averaged over.
        layer: The layer that RUDDER uses.
    """
    groups = layer_groups(len(statistics))
    found = []
    for group in sorted(set(groups)):
        inside = [entry for entry, number in zip(statistics, groups, strict=True) if number == group]
        means = {name: sum(getattr(entry, name) for entry in inside) / len(inside) for name in SHOWN}
        found.append({"layers": [inside[0].layer, inside[-1].layer], **means})
    rows = [{**entry.record(), "group": group} for entry, group in zip(statistics, groups, strict=True)]
    return {"pictures": pictures, "steered_layer": layer, "layers": rows, "groups": found}
