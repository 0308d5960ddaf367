"""The interface that every decoding method has: a frozen dataclass of its settings, and how it generates.

```python
with method.applied(model) as generate:
    output = generate(**inputs, max_new_tokens=64)
```
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from numbers import Integral, Real
from typing import Any, ClassVar

from torch import Tensor, nn

from ..core.backbones import model_type, without_peft
from ..core.configuration import RudderConfig
from ..core.loop import handle_of

Generate = Callable[..., Any]
"""Takes what `model.generate` takes, and `sample_ids`; returns what `model.generate` returns."""


class Intervention(ABC):
    """One decoding method; subclasses are frozen dataclasses whose fields are the method's settings.

    Attributes:
        name: What users type, and what tables say.
        forwards_per_token: Decoder forwards that one generated token costs, per row of the running batch (so that
            beams, which every method under beam search pays for, do not count). Prefills do not count.
        extra_prefills: Prefills of a prompt beyond vanilla's one.
    """

    name: ClassVar[str]

    @property
    def forwards_per_token(self) -> float:
        """Decoder forwards that a generated token costs."""
        return 1.0

    @property
    def extra_prefills(self) -> int:
        """Prefills of the prompt, with or without its image, beyond vanilla's one."""
        return 0

    def refuses(self, beams: int) -> str:
        """Why the method cannot decode with so many beams (1 is greedy search or sampling); empty if it can."""
        return ""

    @abstractmethod
    def applied(self, model: nn.Module) -> AbstractContextManager[Generate]:
        """While the context is open, the yielded function generates with this method; then the model is as before.

        The function takes what `model.generate` takes. It also takes `sample_ids`, one string for each prompt: what a
        method draws at random is then drawn for each sample by itself, so that batches do not change a result.
        Methods without randomness ignore them.
        """

    def settings(self) -> dict[str, Any]:
        """The settings as plain JSON values; of tensors only their shape."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return {field.name: _plain(getattr(self, field.name)) for field in fields}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return {"shape": list(value.shape)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def check_number(method: Intervention, name: str, low: float, high: float, *, whole: bool = False) -> None:
    """Refuse a setting that is no number in [low, high]."""
    value = getattr(method, name)
    kind = Integral if whole else Real
    if isinstance(value, bool) or not isinstance(value, kind) or not low <= float(value) <= high:  # type: ignore[arg-type]
        what = "an integer" if whole else "a number"
        raise ValueError(f"{method.name}: `{name}` is {value!r}, but has to be {what} in [{low:g}, {high:g}].")


def refuse_steered(model: nn.Module) -> None:
    """Refuse a model that RUDDER is on: it is not what a method starts from."""
    base = without_peft(model)
    if model_type(base) == RudderConfig.model_type or handle_of(base) is not None:
        raise ValueError(
            "Methods start from the stock model, but this one is steered by RUDDER already. Pass what `.unwrap()` "
            "returns, or take RUDDER off first: `.remove()` or rudder_hf.detach(model)."
        )


def check_sample_ids(sample_ids: Sequence[str] | None, prompts: int) -> list[str] | None:
    """The ids as a list, one for each prompt."""
    if sample_ids is None:
        return None
    if isinstance(sample_ids, str) or len(sample_ids) != prompts:
        count = "one string" if isinstance(sample_ids, str) else f"{len(sample_ids)} entries"
        raise ValueError(f"sample_ids has {count} for a batch of {prompts} prompts: give a list with one id for each.")
    return [str(sample_id) for sample_id in sample_ids]
