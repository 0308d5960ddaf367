"""The model class for lmms-eval: against itself where it is installed, else against its published interface."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rudder_hf.runtime.answers import synthetic_image
from tests.support.evaluating import loaded

INSTALLED = importlib.util.find_spec("lmms_eval") is not None


def published_interface() -> dict[str, types.ModuleType]:
    """What lmms-eval 0.7 publishes for models of others, as far as a model sees it."""

    class CacheHook:
        def add_partial(self, name: str, request: Any, result: Any) -> None:
            pass

    class lmms:
        is_simple = True

        def __init__(self) -> None:
            self._rank, self._world_size, self.task_dict = 0, 1, {}
            self.cache_hook = CacheHook()

        @property
        def rank(self) -> int:
            return self._rank

    @dataclass(frozen=True)
    class ModelManifest:
        model_id: str
        simple_class_path: str | None = None
        chat_class_path: str | None = None
        aliases: tuple[str, ...] = ()

    modules = {
        name: types.ModuleType(name)
        for name in ("lmms_eval", "lmms_eval.api", "lmms_eval.api.model", "lmms_eval.models")
    }
    modules["lmms_eval.models.registry_v2"] = types.ModuleType("lmms_eval.models.registry_v2")
    modules["lmms_eval.api.model"].lmms = lmms  # type: ignore[attr-defined]
    modules["lmms_eval.models.registry_v2"].ModelManifest = ModelManifest  # type: ignore[attr-defined]
    return modules


@pytest.fixture(scope="module")
def integration() -> Iterator[types.ModuleType]:
    name = "rudder_hf.integrations.lmms_eval"
    with pytest.MonkeyPatch.context() as patch:
        if not INSTALLED:
            for module, content in published_interface().items():
                patch.setitem(sys.modules, module, content)
        yield importlib.import_module(name)
    sys.modules.pop(name, None)


@dataclass
class Request:
    """An Instance of lmms-eval, as far as models look at it."""

    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def model(integration: types.ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    loaded().model.save_pretrained(folder)
    loaded().processor.save_pretrained(folder)
    made = integration.RudderHF(
        pretrained=str(folder), method="rudder-add", layer=2, alpha_max=12.0, batch_size="2", device="cpu"
    )
    made.task_dict = {"task": {"test": [{"image": synthetic_image(number, size=40)} for number in range(3)]}}
    return made


def requests(**options: Any) -> list[Request]:
    def images(document: dict[str, Any]) -> list[Any]:
        return [document["image"]]

    return [
        Request((f"describe the {word}", {"max_new_tokens": 5, **options}, images, number, "task", "test"))
        for number, word in enumerate(("picture", "dog", "red car"))
    ]


def test_manifest_names_the_class(integration: types.ModuleType) -> None:
    manifest = integration.manifest()
    assert manifest.model_id == "rudder_hf"
    module, name = manifest.simple_class_path.rsplit(".", 1)
    assert getattr(sys.modules[module], name) is integration.RudderHF
    project = (Path(__file__).parent.parent.parent / "pyproject.toml").read_text()
    assert (
        '[project.entry-points."lmms_eval.models"]\nrudder_hf = "rudder_hf.integrations.lmms_eval:manifest"' in project
    )


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"temperature": 1.0, "top_p": 0.9}])
def test_answers_are_those_of_single_questions_in_order(model: Any, options: dict[str, Any]) -> None:
    together = model.generate_until(requests(**options))
    assert together == [model.generate_until([request])[0] for request in requests(**options)]
    assert len(set(together)) > 1


def test_answers_are_steered_and_cut(model: Any, integration: types.ModuleType) -> None:
    steered = model.generate_until(requests())
    plain = integration.RudderHF(pretrained=model.loaded.name, method="vanilla", device="cpu")
    plain.task_dict = model.task_dict
    assert plain.generate_until(requests()) != steered
    word = steered[0].split()[1]
    assert model.generate_until(requests(until=[word]))[0] == steered[0].split(word)[0].strip()


def test_yes_no_tasks_have_the_published_settings_for_them(model: Any, integration: types.ModuleType) -> None:
    """VISTA is published with another strength for yes/no questions than for captions."""
    images = model.task_dict["task"]["test"]

    def answers(task: str, **settings: float) -> list[str]:
        tested = integration.RudderHF(pretrained=model.loaded.name, method="vista", device="cpu", **settings)
        tested.task_dict = {task: {"test": images}}
        asked = [Request((*request.args[:4], task, "test")) for request in requests()]
        return list(tested.generate_until(asked))

    for task, strength in (("captions", 0.17), ("mmerealworld", 0.17), ("pope_adv", 0.01), ("mme", 0.01)):
        assert answers(task) == answers("other", strength=strength), task
    assert answers("pope", strength=3.0) == answers("other", strength=3.0)
    assert answers("pope") != answers("other", strength=3.0)


def test_what_it_cannot_do_is_said(model: Any) -> None:
    with pytest.raises(NotImplementedError, match="generative task"):
        model.loglikelihood([])
    with pytest.raises(NotImplementedError, match="single questions"):
        model.generate_until_multi_round([])
    with pytest.raises(ValueError, match="takes images, not str"):
        model.generate_until([Request(("a", {}, lambda document: ["video.mp4"], 0, "task", "test"))])
    with pytest.raises(ValueError, match="sample from beams"):
        model.generate_until(requests(temperature=1.0, num_beams=2))


@pytest.mark.skipif(not INSTALLED, reason="lmms-eval is not installed")
def test_the_real_registry_accepts_it(integration: types.ModuleType) -> None:
    from lmms_eval.models.registry_v2 import ModelRegistryV2

    registry = ModelRegistryV2()
    registry.register_manifest(integration.manifest())
    for name in ("rudder_hf", "rudder"):
        assert registry.get_model_class(name) is integration.RudderHF
