"""Decoding methods against hallucination, all under one interface, on stock transformers models.

```python
from rudder_hf import interventions

method = interventions.get("vcd", alpha=1.0)
with method.applied(model) as generate:
    output = generate(**inputs, max_new_tokens=64)
```

RUDDER, its control experiments, and peers that need no other model: DoLa, VCD, PAI, VISTA, VTI, OPERA. A method of
your own is a frozen dataclass that derives from `Intervention`, or from `LoopIntervention` if it works inside the
stock token loop; see `examples/custom_intervention.py`.
"""

from __future__ import annotations

from typing import Any

from .base import Generate, Intervention
from .branches import Branch, text_branch
from .dola import Dola, DolaHigh
from .negated_card import NegatedCard
from .opera import Opera
from .pai import PAI, PAIAttention
from .random_direction import RandomDirection
from .rudder import RudderAdd, RudderBeta
from .runs import LoopIntervention, Run
from .shuffled_card import ShuffledCard, collect_cards
from .text_only_card import TextOnlyCard
from .vanilla import Vanilla
from .vcd import VCD
from .vista import Vista, VistaAugmentation, VistaSteering
from .vti import VTI, textual_directions

METHODS: dict[str, type[Intervention]] = {
    method.name: method
    for method in (
        *(Vanilla, RudderBeta, RudderAdd),
        *(Dola, DolaHigh, VCD, PAIAttention, PAI, VistaSteering, VistaAugmentation, Vista, VTI, Opera),
        *(RandomDirection, ShuffledCard, NegatedCard, TextOnlyCard),
    )
}
"""The methods by name."""

NAMES: tuple[str, ...] = tuple(METHODS)
"""Names that `get` takes: vanilla, RUDDER, peers, then controls."""


def get(name: str, **settings: Any) -> Intervention:
    """A method by name, with its published settings but for those given.

    Args:
        name: One of `NAMES`.
        settings: Fields of the method's class. RUDDER and its controls need `config=` or at least `layer=` and
            `alpha_max=`; "vti" needs `directions=`.

    Raises:
        ValueError: There is no such method, or a setting is out of range.
        TypeError: The method has no such setting.
    """
    if name not in METHODS:
        raise ValueError(f"There is no method {name!r}. Methods: {', '.join(NAMES)}.")
    return METHODS[name](**settings)


__all__ = [
    "METHODS",
    "NAMES",
    "get",
    "Generate",
    "Intervention",
    "LoopIntervention",
    "Run",
    "Branch",
    "text_branch",
    "Vanilla",
    "RudderBeta",
    "RudderAdd",
    "Dola",
    "DolaHigh",
    "VCD",
    "PAI",
    "PAIAttention",
    "Vista",
    "VistaSteering",
    "VistaAugmentation",
    "VTI",
    "textual_directions",
    "Opera",
    "RandomDirection",
    "ShuffledCard",
    "collect_cards",
    "NegatedCard",
    "TextOnlyCard",
]
