"""What a decoding method is, and the registry of all of them.

Adding a method means writing its file, which declares everything that the commands have to know about it (see
`Method`), and adding one line to `METHODS`.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from ..core.backbones import model_type, without_peft
from ..core.configuration import RudderConfig
from ..core.generate import handle_of

METHODS: dict[str, str] = {
    "vanilla": "rudder:Vanilla",
    "rudder-beta": "rudder:RudderBeta",
    "rudder-add": "rudder:RudderAdd",
    "contrast": "contrast:Contrast",
    "rudder-beta+contrast": "contrast:RudderContrast",
    "rudder-released": "released:RudderReleased",
    "dola": "dola:Dola",
    "vcd": "vcd:VCD",
    "pai": "pai:PAI",
    "vista": "vista:Vista",
    "vti": "vti:VTI",
    "flb": "flb:FLB",
    "plausibility": "flb:Plausibility",
    "rudder-random": "controls:RandomDirection",
    "rudder-shuffled": "controls:ShuffledCard",
    "rudder-mean": "controls:MeanCard",
    "rudder-negated": "controls:NegatedCard",
    "contrast-random": "controls:RandomContrast",
    "contrast-shuffled": "controls:ShuffledContrast",
    "contrast-negated": "controls:NegatedContrast",
}
"""Module of this folder and class of each method, by the name that users type. Modules are imported on demand."""

NAMES: tuple[str, ...] = tuple(METHODS)
"""Names that `get` takes: vanilla, RUDDER, the contrast beyond the paper, other methods, then controls."""

_MODULES = {name: place.partition(":")[0] for name, place in METHODS.items() if name != "vanilla"}

GROUPS: dict[str, tuple[str, ...]] = {
    "all": NAMES,
    "rudder": tuple(name for name, module in _MODULES.items() if module == "rudder"),
    "contrast": tuple(name for name, module in _MODULES.items() if module == "contrast"),
    "peers": tuple(name for name, module in _MODULES.items() if module not in ("rudder", "contrast", "controls")),
    "controls": tuple(name for name, module in _MODULES.items() if module == "controls"),
}
"""Names that stand for several methods."""

CONTROL_OF = {name: "contrast" if name.startswith("contrast-") else "rudder-beta" for name in GROUPS["controls"]}
"""The method that each control is a control of."""

BUDGET = 8
"""Number of settings in every search space, so that no method is tuned harder than another."""

Value = TypeVar("Value")
Generate = Callable[..., Any]
"""Takes what `model.generate` takes, and `sample_ids`; returns what `model.generate` returns."""
Inputs = Mapping[str, Any]
"""Inputs of `generate`: `input_ids`, `attention_mask`, `pixel_values` and so on."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where `Method.for_model` finds what a method needs beside its settings. None: this is not available."""

    rudder: Callable[[str], RudderConfig | None] | None = None  # RUDDER's settings for the model, by method
    # Pairs of inputs that end in a correct and in a hallucinated caption of the same image
    caption_pairs: Callable[[], Iterable[tuple[Inputs, Inputs]]] | None = None
    prompts: Callable[[], Iterable[Inputs]] | None = None  # inputs with other images, for controls that borrow


def number(default: Value, low: float, high: float) -> Value:
    """Default of a setting that is a number in a range, both ends included."""
    return dataclasses.field(default=default, metadata={"range": (low, high)})


class Method(ABC):
    """One decoding method: a frozen dataclass whose fields are its settings, with the published defaults for captions.

    Methods that work inside the stock token loop derive from `runs.LoopMethod` and declare up to four members: `name`,
    `searched`, the cost numbers (`forwards_per_token`, `extra_prefills`), and `prepare`. The few that depend on the
    model beyond this override `search_space` or `for_model`.
    """

    name: ClassVar[str]  # what users type, and what tables say
    searched: ClassVar[Sequence[Mapping[str, Any]]] = ()  # settings to tune on, gentle first, the published among them
    # Decoder forwards per generated token and row of the running batch, of which beams are rows; without prefills
    forwards_per_token: ClassVar[float] = 1.0
    extra_prefills: ClassVar[int] = 0  # of the prompt, with or without its image, beyond vanilla's one

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, annotation = getattr(self, field.name), str(field.type)
            if isinstance(value, list) and "tuple" in annotation:  # from JSON, which has no tuples
                object.__setattr__(self, field.name, tuple(value))
            if "range" not in field.metadata or (value is None and annotation.endswith("| None")):
                continue
            low, high = field.metadata["range"]
            whole = annotation.startswith(("int", "<class 'int'"))
            number = isinstance(value, Integral if whole else Real) and not isinstance(value, bool)
            if not number or not low <= float(value) <= high:
                what = f"{'an integer' if whole else 'a number'} in [{low:g}, {high:g}]"
                raise ValueError(f"{self.name}: `{field.name}` is {value!r}, but has to be {what}.")

    @classmethod
    def search_space(cls, hidden_norms: Mapping[int, float]) -> list[dict[str, Any]]:
        """`BUDGET` settings to tune the method on, gentle first; empty for one without any (vanilla, controls).

        Args:
            hidden_norms: Median norm of the hidden states at the two layers that suit steering best. The strength of
                a method that adds to hidden states is relative to it; others have fixed settings, `searched`.
        """
        return [dict(settings) for settings in cls.searched]

    @classmethod
    def for_model(cls, model: nn.Module, sources: Sources, **settings: Any) -> Self:
        """The method for a model, with what it needs from `sources` unless `settings` contain it.

        Raises:
            ValueError: Something that the method needs is missing, or a setting is out of range.
        """
        return cls(**settings)

    @abstractmethod
    def applied(self, model: nn.Module) -> AbstractContextManager[Generate]:
        """While the context is open, the yielded function generates with this method; then the model is as before.

        The function takes what `model.generate` takes. It also takes `sample_ids`, one string for each prompt: what a
        method draws at random is then drawn for each sample by itself, so that batches do not change a result.
        Methods without randomness ignore them.
        """

    def settings(self) -> dict[str, Any]:
        """The settings as plain JSON values; of tensors only their shape."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        for name, value in values.items():
            if isinstance(value, Tensor):
                values[name] = {"shape": list(value.shape)}
            elif isinstance(value, tuple):
                values[name] = list(value)
        return values


def method_class(name: str) -> type[Method]:
    """The class of a method; its module is imported now.

    Raises:
        ValueError: There is no such method.
    """
    if name not in METHODS:
        raise unknown_method(name)
    module, _, attribute = METHODS[name].partition(":")
    found: type[Method] = getattr(importlib.import_module(f".{module}", __package__), attribute)
    return found


def unknown_method(name: str, groups: Sequence[str] = ()) -> ValueError:
    """The error for a name that is neither a method nor one of `groups`, with the closest one."""
    close = difflib.get_close_matches(name.lower(), [*NAMES, *groups], 1, 0.65)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    known = f" Groups: {', '.join(groups)}." if groups else ""
    return ValueError(f"There is no method {name!r}.{meant} Methods: {', '.join(NAMES)}.{known}")


def get(name: str, **settings: Any) -> Method:
    """A method by name, with its published settings except for those given.

    Args:
        name: One of `NAMES`.
        settings: Fields of the method's class. RUDDER and its controls need `config=` or at least `layer=` and
            `alpha_max=`; "vti" needs `directions=`.

    Raises:
        ValueError: There is no such method, or a setting is out of range.
        TypeError: The method has no such setting.
    """
    return method_class(name)(**settings)


def grid(**values: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of settings; those of the first setting vary fastest."""
    combinations = itertools.product(*reversed(values.values()))
    return [dict(zip(values, reversed(combination), strict=True)) for combination in combinations]


def refuse_steered(model: nn.Module) -> None:
    """Raise ValueError for a model that RUDDER steers already: methods start from the stock model."""
    base = without_peft(model)
    if model_type(base) == RudderConfig.model_type or handle_of(base) is not None:
        raise ValueError(
            "Methods start from the stock model, but this one is steered by RUDDER already. Pass what `.unwrap()` "
            "returns, or take RUDDER off first: `.remove()` or rudder_hf.detach(model)."
        )


def check_sample_ids(sample_ids: Sequence[str] | None, prompts: int) -> list[str]:
    """One id for each prompt: those given, or the prompts' places in the batch."""
    if sample_ids is None:
        return [f"row {prompt}" for prompt in range(prompts)]
    if isinstance(sample_ids, str) or len(sample_ids) != prompts:
        count = "one string" if isinstance(sample_ids, str) else f"{len(sample_ids)} entries"
        raise ValueError(f"sample_ids has {count} for a batch of {prompts} prompts: give a list with one id for each.")
    return [str(sample_id) for sample_id in sample_ids]


def sample_generator(seed: int, *parts: object) -> torch.Generator:
    """A random generator of a sample, wherever it is in a batch.

    It is on the CPU and seeded by a hash of the seed and of whatever distinguishes one draw from another.
    """
    digest = hashlib.sha256(repr((seed, *map(str, parts))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def sample_normal(shape: Sequence[int], seed: int, *parts: object) -> Tensor:
    """Standard normal float32 numbers of `sample_generator`, the same on every device."""
    return torch.randn(tuple(shape), generator=sample_generator(seed, *parts))
