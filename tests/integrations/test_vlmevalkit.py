"""The snippet for VLMEvalKit in docs/evaluation.md runs, against the interface of VLMEvalKit's models."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from rudder_hf.runtime.answers import synthetic_image
from tests.support.repos import make_base, make_settings

PAGE = Path(__file__).parent.parent.parent / "docs" / "evaluation.md"


class BaseModel:
    """What VLMEvalKit's class does with the parts of a message, each with a type and a value."""

    def generate(self, message: list[dict[str, str]], dataset: str | None = None) -> str:
        answer: str = self.generate_inner(message, dataset)  # type: ignore[attr-defined]
        return answer


def test_the_snippet_answers_as_the_settings_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models: dict[str, Any] = {}
    contents = {"vlmeval": {}, "vlmeval.config": {"supported_VLM": models}, "vlmeval.vlm": {}}
    for name, values in {**contents, "vlmeval.vlm.base": {"BaseModel": BaseModel}}.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["vlmeval"].config = sys.modules["vlmeval.config"]  # type: ignore[attr-defined]
    settings = make_settings(tmp_path / "settings", make_base(tmp_path / "base"))
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "vlmeval" in block]
    exec(code.replace("SETTINGS_REPO", str(settings)), {"__name__": "rudder_run"})
    model = models["rudder"]()
    image = tmp_path / "image.png"
    synthetic_image(size=40).save(image)
    message = [{"type": "image", "value": str(image)}, {"type": "text", "value": "what is this"}]
    steered = model.generate(message, "POPE")
    assert steered
    model.model.config.alpha_max = 0.0
    assert model.generate(message) != steered
