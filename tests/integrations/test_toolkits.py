"""The evaluation toolkits of others, lmms-eval and VLMEvalKit.

The model class for lmms-eval runs against itself where that is installed, else against its published interface; the
snippet for VLMEvalKit runs against the interface of its models.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rudder_hf.runtime.answers import synthetic_image
from tests.support.evaluating import loaded
from tests.support.repos import make_base, make_settings

ROOT = Path(__file__).parent.parent.parent

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
    def messages(word: str) -> Any:
        def of(document: dict[str, Any]) -> list[dict[str, Any]]:
            text = {"type": "text", "text": f"<image>describe the {word}"}
            return [{"role": "user", "content": [{"type": "image", "url": document["image"]}, text]}]

        return of

    return [
        Request((f"describe the {word}", messages(word), {"max_new_tokens": 5, **options}, number, "task", "test"))
        for number, word in enumerate(("picture", "dog", "red car"))
    ]


def test_manifest_names_the_class(integration: types.ModuleType) -> None:
    manifest = integration.manifest()
    assert manifest.model_id == "rudder_hf"
    module, name = manifest.chat_class_path.rsplit(".", 1)
    assert getattr(sys.modules[module], name) is integration.RudderHF
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points["lmms_eval.models"] == {"rudder_hf": "rudder_hf.integrations.lmms_eval:manifest"}


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


def test_what_it_cannot_do_is_said(model: Any) -> None:
    with pytest.raises(NotImplementedError, match="generative task"):
        model.loglikelihood([])
    with pytest.raises(NotImplementedError, match="single questions"):
        model.generate_until_multi_round([])
    for part, shown in (({"type": "image", "url": "a.png"}, "str"), ({"type": "video", "url": "a.mp4"}, "video")):
        messages = [{"role": "user", "content": [part]}]
        with pytest.raises(ValueError, match=f"takes images, not {shown}"):
            model.generate_until([Request(("a", lambda document, m=messages: m, {}, 0, "task", "test"))])
    with pytest.raises(ValueError, match="sample from beams"):
        model.generate_until(requests(temperature=1.0, num_beams=2))


@pytest.mark.skipif(not INSTALLED, reason="lmms-eval is not installed")
def test_the_real_registry_accepts_it(integration: types.ModuleType) -> None:
    from lmms_eval.models.registry_v2 import ModelRegistryV2

    registry = ModelRegistryV2()
    registry.register_manifest(integration.manifest())
    for name in ("rudder_hf", "rudder"):
        assert registry.get_model_class(name) is integration.RudderHF


TASK = """
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
task: scenes_of_a_test
test_split: test
output_type: generate_until
doc_to_visual: !function scenes.images
doc_to_text: question
doc_to_target: answer
generation_kwargs: {max_new_tokens: 4, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
FUNCTIONS = """
from rudder_hf.runtime.answers import synthetic_image
def images(doc): return [synthetic_image(doc["number"], size=40)]
"""


REGISTER = """
import lmms_eval.models as known
from rudder_hf.integrations.lmms_eval import manifest
known.MODEL_REGISTRY_V2.register_manifest(manifest(), overwrite=True)
"""
# lmms-eval 0.7.3 passes `audios` to every processor, with RUDDER or without, and transformers 5 refuses this name.
WITHOUT_AUDIOS = """
from transformers.processing_utils import ProcessorMixin
call = ProcessorMixin.__call__
ProcessorMixin.__call__ = lambda self, *args, audios=None, **options: call(self, *args, **options)
"""
RUN = "from lmms_eval.__main__ import cli_evaluate\ncli_evaluate()"


@pytest.mark.skipif(not INSTALLED, reason="lmms-eval is not installed")
@pytest.mark.parametrize(
    ("model", "options", "before"),
    [("rudder_hf", "", REGISTER), ("huggingface", ",trust_remote_code=True,device_map=cpu", WITHOUT_AUDIOS)],
    ids=["plug-in", "settings repository"],
)
def test_the_real_evaluation_runs(model: str, options: str, before: str, tmp_path: Path) -> None:
    """`lmms-eval` itself on a task of two questions, with the plug-in, and with its own class and no plug-in."""
    settings = make_settings(tmp_path / "settings", make_base(tmp_path / "base"))
    rows = [{"number": n, "question": f"what is this {n}", "answer": "a"} for n in range(2)]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    (tmp_path / "scenes.py").write_text(FUNCTIONS)
    (tmp_path / "scenes.yaml").write_text(TASK.replace("DATA", str(tmp_path / "data.json")))
    environment = {
        **os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
        "LMMS_EVAL_PLUGINS": "", "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT), str(tmp_path)]),
    }  # fmt: skip
    arguments = ["--model", model, "--model_args", f"pretrained={settings},device=cpu{options}", "--batch_size", "1",
                 "--tasks", "scenes_of_a_test", "--include_path", str(tmp_path), "--log_samples",
                 "--output_path", str(tmp_path / "out")]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", before + RUN, *arguments],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    written = list((tmp_path / "out").rglob("*samples*.jsonl"))
    assert len(written) == 1, done.stderr[-3000:]  # lmms-eval ends with 0 after an error too
    answers = [json.loads(line)["filtered_resps"] for line in written[0].read_text().splitlines()]
    assert len(answers) == 2
    assert all(str(answer) for answer in answers)


# The snippet for VLMEvalKit on the page


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
    page = (ROOT / "docs" / "evaluation.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
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
