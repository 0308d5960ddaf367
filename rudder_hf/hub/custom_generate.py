"""Steering one call of a stock model: what `custom_generate/generate.py` of a settings repository runs."""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from ..core.backbones import find_backbone
from ..core.call import Call, Override
from ..core.generate import generate_inner, handle_of, run
from ..core.handle import SteeringHandle
from ..core.settings import MODEL_TYPE, check_gate_range, check_setting

# They say where the settings are, and reach the function all the same.
_HUB_ARGUMENTS = (
    *("cache_dir", "force_download", "local_files_only", "proxies", "revision", "code_revision", "subfolder"),
    *("token", "repo_type", "trust_remote_code", "custom_generate"),
)
_HANDLES_LOCK = threading.Lock()


class StoredSettings(types.SimpleNamespace):
    """The settings of a repository as attributes, checked: a config without what loads models."""

    model_type = MODEL_TYPE

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(**{name: check_setting(name, value) for name, value in settings.items()})
        check_gate_range(self.g_min, self.g_max)

    def expression(self) -> str:
        """Write the settings, for messages."""
        return ", ".join(f"{name}={value!r}" for name, value in vars(self).items())


class BorrowedHandle(SteeringHandle):
    """Hooks for as long as calls need them. Other calls on the same model are not steered meanwhile."""

    of_part = True

    def __init__(self, model: nn.Module, config: Any) -> None:
        super().__init__(model, config)
        self.borrowers = 0

    def bind_generate(self) -> None:
        """Keep a call within a steered one, from a streamer for example, apart from it."""
        self.bind(self.backbone.model, "generate", generate_inner)


def generate_steered(
    model: Any,
    settings: Mapping[str, Any],
    rudder: Override = None,
    output_rudder: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Run the `generate` of a stock model, or of the language model that it delegates to, once, steered.

    `settings` are RUDDER's, as a config stores them; the other arguments those of
    `RudderForConditionalGeneration.generate`.

    Raises:
        ValueError: The model is steered already, or steered meanwhile with other settings.
    """
    kwargs = {name: value for name, value in kwargs.items() if name not in _HUB_ARGUMENTS}
    with _borrowed(model, StoredSettings(settings)) as handle:
        # Not the instance's own `generate`, which may be the very function that called us.
        stock = types.MethodType(type(model).generate, model)
        return run(handle, Call(model, (), kwargs, rudder, output_rudder), stock, (), kwargs)


@contextmanager
def _borrowed(model: nn.Module, config: Any) -> Iterator[BorrowedHandle]:
    """Put hooks on the model. Calls that run at the same time share them, and the last one takes them off."""
    with _HANDLES_LOCK:
        handle = handle_of(find_backbone(model, BorrowedHandle.of_part).model)
        if handle is None:
            handle = BorrowedHandle(model, config)
            handle.install()
        elif not isinstance(handle, BorrowedHandle) or handle.config != config:
            raise ValueError(
                "This model is already steered by RUDDER, and steering it twice would add the push twice. Leave out "
                "custom_generate, or remove the other first: `.remove()`, `.unwrap()`, or rudder_hf.detach(model)."
            )
        handle.borrowers += 1
    try:
        yield handle
    finally:
        with _HANDLES_LOCK:
            handle.borrowers -= 1
            if handle.borrowers == 0:
                handle.uninstall()
