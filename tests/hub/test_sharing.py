"""Settings repositories in a folder: what is written, and what comes back through the Auto classes, on any machine."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoProcessor,
    AutoTokenizer,
    GenerationConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    StaticCache,
)

import rudder_hf
from rudder_hf import RudderConfig, RudderForConditionalGeneration, attach, detach, write_repo
from rudder_hf.core.version import OLDEST_TRANSFORMERS
from rudder_hf.hub.push import repo_files
from tests.support.helpers import settings
from tests.support.hub import Elsewhere
from tests.support.repos import inputs_for, make_base, make_settings, picture

PACKAGE = Path(rudder_hf.__file__).parent
AUTO_MODELS = (AutoModel, AutoModelForImageTextToText, AutoModelForMultimodalLM)


# What is written


def test_settings_without_code(repo: Path, tmp_path: Path) -> None:
    """Two small files, loaded by the installed package without a trust flag."""
    config = RudderConfig.from_pretrained(repo)
    written = write_repo(config, tmp_path, code=False)
    assert sorted(path.name for path in written) == ["README.md", "config.json"]
    assert sum(path.stat().st_size for path in written) < 6000
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())
    assert "pip install rudder_hf" in (tmp_path / "README.md").read_text()
    for way in (*AUTO_MODELS, RudderForConditionalGeneration):
        assert way.from_pretrained(tmp_path).config.alpha_max == config.alpha_max
    assert type(AutoProcessor.from_pretrained(tmp_path)).__name__ == "LlavaProcessor"
    # Code that an earlier version of the folder held is taken away.
    write_repo(config, tmp_path)
    write_repo(config, tmp_path, code=False)
    assert not list(tmp_path.rglob("*.py"))


def test_the_tokenizer_needs_no_processor(base: Path, tmp_path: Path) -> None:
    """As for a base whose image processor cannot be loaded here."""
    bare = tmp_path / "bare"
    shutil.copytree(base, bare)
    for name in ("processor_config.json", "preprocessor_config.json"):
        (bare / name).unlink(missing_ok=True)
    settings = make_settings(tmp_path / "on-bare", bare)
    assert (
        AutoTokenizer.from_pretrained(settings)("this").input_ids
        == AutoTokenizer.from_pretrained(bare)("this").input_ids
    )


def test_forms_of_settings(base: Path) -> None:
    """A dictionary or keywords, for a folder and for a loaded model; without any, the error says what to do."""
    make = RudderForConditionalGeneration.from_base
    given = {"layer": 1, "alpha_max": 7.0}
    for model in (make(base, given), make(base, **given), make(make(base, given).unwrap(), **given)):
        assert (model.config.layer, model.config.alpha_max) == (1, 7.0)
        assert "RUDDER: RudderConfig(layer=1, alpha_max=7.0)" in str(model)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(model)
    for source in (base, model.unwrap()):
        with pytest.raises(ValueError, match=r"rudder calibrate --model .*starting point is layer=\d"):
            make(source)
        with pytest.raises(ValueError, match="starting point"):
            make(source, alpha_max=3.0)
    source.config.name_or_path = "org/model"
    with pytest.raises(ValueError, match=r"rudder search org/model`.*rudder calibrate --model org/model`"):
        make(source)


def test_config_is_whole(base: Path) -> None:
    config = RudderConfig(base_model_name_or_path="org/base", base_model_revision="a" * 40, k=3.0)
    record = {"images": 5, "model": {"name": "org/base"}, "settings": config.settings()}
    config.calibration = record
    files = repo_files(config)
    stored = json.loads(files["config.json"])
    assert (stored["base_model_name_or_path"], stored["base_model_revision"]) == ("org/base", "a" * 40)
    assert stored["calibration"] == record
    assert stored["custom_pipelines"].keys() == {"image-to-text"}
    assert {name for name in stored["auto_map"] if name.startswith("AutoModel")} == {
        c.__name__ for c in (*AUTO_MODELS, AutoModelForCausalLM)
    }
    for reference in (*stored["auto_map"].values(), stored["custom_pipelines"]["image-to-text"]["impl"]):
        module, name = reference.split(".")
        assert name in [node.name for node in ast.parse(files[f"{module}.py"]).body if isinstance(node, ast.ClassDef)]
    module = ast.parse(files["custom_generate/generate.py"])
    (settings,) = [
        node.value for node in module.body if isinstance(node, ast.Assign) and node.targets[0].id == "SETTINGS"
    ]  # type: ignore[attr-defined]
    assert RudderConfig.from_dict(ast.literal_eval(settings)).k == 3.0
    assert RudderConfig.from_dict(stored).calibration == record


def test_writing_again_gives_the_same_and_leaves_the_rest(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(2):
        write_repo(RudderConfig.from_pretrained(repo), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    for path in (each for each in repo.rglob("*") if each.is_file() and each.name != "README.md"):
        assert (tmp_path / path.relative_to(repo)).read_bytes() == path.read_bytes()
    assert not list(tmp_path.rglob("*.part"))


def test_a_file_in_the_way(tmp_path: Path, repo: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="give a folder"):
        write_repo(RudderConfig.from_pretrained(repo), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


FOREIGN = {
    "config": {"config.json": '{"model_type": "llava"}'},
    "damaged": {"config.json": "["},
    "weights": {"model-00001-of-00002.safetensors": ""},
    "adapter": {"adapter_config.json": "{}", "adapter_model.bin": ""},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_model_in_the_folder_is_not_overwritten(kind: str, base: Path, repo: Path, tmp_path: Path) -> None:
    for name, text in FOREIGN[kind].items():
        (tmp_path / name).write_text(text)
    config = RudderConfig.from_pretrained(repo)
    wrapper = RudderForConditionalGeneration.from_base(base, config)
    for save in (lambda folder: write_repo(config, folder), config.save_pretrained, wrapper.save_pretrained):
        with pytest.raises(ValueError, match=f"{tmp_path} holds something else than RUDDER settings .*another folder"):
            save(tmp_path)
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == FOREIGN[kind]


def test_other_files_beside_the_settings_are_no_model(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "trace.safetensors").touch()
    for _ in range(2):
        write_repo(RudderConfig.from_pretrained(repo), tmp_path)
        (tmp_path / "model.safetensors").touch()


# With the package: the installed code, without a flag


@pytest.mark.parametrize("auto_class", AUTO_MODELS)
@pytest.mark.parametrize("trust", [None, True])
def test_the_installed_code_is_used(auto_class: Any, trust: bool | None, repo: Path) -> None:
    model = auto_class.from_pretrained(repo, trust_remote_code=trust)
    assert type(model) is RudderForConditionalGeneration
    assert type(AutoConfig.from_pretrained(repo)) is RudderConfig
    assert type(AutoProcessor.from_pretrained(repo)) is LlavaProcessor


@pytest.mark.parametrize("way", [AutoModel, RudderForConditionalGeneration])
def test_every_argument_arrives(way: Any, repo: Path, tmp_path: Path) -> None:
    model = way.from_pretrained(
        repo,
        alpha_max=11.0,
        layer=1,
        dtype=torch.bfloat16,
        attn_implementation="eager",
        device_map={"model": "cpu", "lm_head": "disk"},
        offload_folder=tmp_path / "offload",
        output_hidden_states=True,
        vision_feature_layer=-1,
    )
    assert (model.config.alpha_max, model.config.layer, model.handle.layer) == (11.0, 1, 1)
    assert model.dtype == model.model.dtype == torch.bfloat16
    assert model.model.config.text_config._attn_implementation == "eager"
    assert model.hf_device_map["lm_head"] == "disk"
    assert model.model.config.vision_feature_layer == -1
    assert model.model.config.output_hidden_states


@pytest.mark.parametrize("way", [AutoModel, AutoConfig, RudderForConditionalGeneration, RudderConfig])
def test_wrong_override(way: Any, repo: Path) -> None:
    with pytest.raises(ValueError, match=r"`alpha_max` is -1, but has to be a number in \[0"):
        way.from_pretrained(repo, alpha_max=-1)


def test_another_base_at_load(repo: Path, tmp_path: Path) -> None:
    other = make_base(tmp_path / "other", seed=2)
    for way in (AutoModel, RudderForConditionalGeneration):
        model = way.from_pretrained(repo, base_model_name_or_path=str(other))
        assert model.config.base_model_name_or_path == str(other)
        wanted = AutoModelForImageTextToText.from_pretrained(other).lm_head.weight
        assert torch.equal(model.lm_head.weight, wanted)


def test_a_base_in_a_folder_is_stored_by_its_full_path(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Elsewhere a relative one leads to nothing, or to somebody's repository of that name."""
    monkeypatch.chdir(base.parent)
    config = RudderConfig(layer=1, base_model_name_or_path=base.name)
    record = {"model": {"name": base.name, "revision": "files-sha256:1"}, "settings": config.settings()}
    config.calibration = record
    for name in (base.name, f"./{base.name}", AutoModelForImageTextToText.from_pretrained(base.name)):
        model = RudderForConditionalGeneration.from_base(name, config)
        model.save_pretrained(tmp_path / "saved")
        assert model.config.base_model_name_or_path == str(base)
    RudderForConditionalGeneration.from_base(base.name, model.config)
    assert (config.base_model_name_or_path, config.calibration) == (base.name, record)
    assert "Settings made for" not in caplog.text
    monkeypatch.chdir(tmp_path)
    loaded = RudderForConditionalGeneration.from_pretrained("saved")
    assert loaded.config.base_model_name_or_path == str(base)
    assert loaded.config.calibration == {**record, "model": {"name": str(base), "revision": "files-sha256:1"}}
    with pytest.raises(ValueError, match="others cannot load"):
        loaded.push_to_hub("org/name")


def test_a_name_that_leads_to_no_model(repo: Path) -> None:
    for config in (None, RudderConfig(layer=1)):
        with pytest.raises(ValueError, match=f"holds RUDDER settings, .*from_pretrained\\('{repo}'\\)"):
            RudderForConditionalGeneration.from_base(repo, config)
        with pytest.raises(FileNotFoundError, match=r"no folder './no-such'.*'namespace/name'"):
            RudderForConditionalGeneration.from_base("./no-such", config)
    with pytest.raises(FileNotFoundError, match="no folder '/no/such'"):
        RudderForConditionalGeneration.from_pretrained("/no/such")
    with pytest.raises(FileNotFoundError, match="no folder '/no/such'"):
        RudderForConditionalGeneration.from_pretrained(repo, base_model_name_or_path="/no/such")


def test_from_base_takes_settings_too(base: Path) -> None:
    """Beside the base's arguments."""
    given = {"dtype": torch.bfloat16, "subfolder": base.name, "attn_implementation": "eager"}
    model = RudderForConditionalGeneration.from_base(base.parent, RudderConfig(layer=1), alpha_max=7.0, **given)
    assert (model.config.layer, model.config.alpha_max, model.dtype) == (1, 7.0, torch.bfloat16)
    assert model.model.config.text_config._attn_implementation == "eager"


def test_a_config_of_another_kind(repo: Path, base: Path) -> None:
    with pytest.raises(TypeError, match="has to be a RudderConfig"):
        RudderForConditionalGeneration.from_pretrained(repo, config=AutoConfig.from_pretrained(base))


def test_processor_arguments(repo: Path) -> None:
    """What a pipeline passes for the model does not disturb the processor, and what is for it arrives."""
    processor = AutoProcessor.from_pretrained(
        repo, dtype=torch.bfloat16, alpha_max=2.0, device_map="cpu", patch_size=7
    )
    assert processor.patch_size == 7


def test_config_answers_for_the_base(repo: Path, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(repo)
    base = model.model.config
    assert model.config.image_token_id == base.image_token_id
    assert model.config.text_config is base.text_config
    assert model.config.get_text_config(decoder=True) is base.text_config
    assert len(StaticCache(config=model.config, max_cache_len=8).layers) == base.text_config.num_hidden_layers
    assert model.input_modalities == model.model.input_modalities
    assert not hasattr(model.config, "no_such_thing")
    # Nothing of it is stored or compared.
    model.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == (repo / "config.json").read_bytes()
    assert not list(tmp_path.glob("*.safetensors"))
    model.config = RudderConfig(layer=1, alpha_max=3.0)
    model.generate(**inputs_for(AutoProcessor.from_pretrained(repo), [picture()]), max_new_tokens=1)
    assert model.config.image_token_id == base.image_token_id


@pytest.mark.slow
def test_saving_a_loaded_pipeline(repo: Path, tmp_path: Path) -> None:
    pipe = rudder_hf.pipeline("image-to-text", AutoModel.from_pretrained(repo))
    pipe.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_bytes() == (repo / "config.json").read_bytes()


# Without the package


@pytest.mark.parametrize("version", ["4.57.6", "5.15.1"])
def test_an_older_transformers_is_told_what_it_lacks(version: str, elsewhere: Elsewhere, repo: Path) -> None:
    """One sentence with the version that is needed, from every way into the repository's code, before any import."""
    assert json.loads((repo / "config.json").read_text())["transformers_needed"] == f">={OLDEST_TRANSFORMERS}"
    code = f"""
import json, transformers
from transformers import AutoConfig, AutoModel, AutoProcessor
from transformers.dynamic_module_utils import get_class_from_dynamic_module
transformers.__version__, said, repo = {version!r}, [], {str(repo)!r}
for load in (
    lambda: AutoConfig.from_pretrained(repo, trust_remote_code=True),
    lambda: AutoModel.from_pretrained(repo, trust_remote_code=True),
    lambda: AutoProcessor.from_pretrained(repo, trust_remote_code=True),
    lambda: get_class_from_dynamic_module("custom_generate/generate.generate", repo),
):
    try:
        load()
    except ImportError as error:
        said.append(str(error))
print(json.dumps(said))
"""
    sentence = (
        f"These RUDDER settings need transformers {OLDEST_TRANSFORMERS} or later, and transformers {version} is "
        f"installed: pip install -U 'transformers>={OLDEST_TRANSFORMERS}'"
    )
    assert elsewhere.run(code).value == [sentence] * 4


# In place: `AutoModelForCausalLM`, and settings in a generation config

GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}


@pytest.fixture(scope="module")
def inputs(repo: Path) -> dict[str, Any]:
    return inputs_for(AutoProcessor.from_pretrained(repo), [picture()])


@pytest.fixture(scope="module")
def expected(repo: Path, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What the wrapper generates."""
    wrapper = AutoModel.from_pretrained(repo)
    assert isinstance(wrapper, RudderForConditionalGeneration)
    kinds: dict[str, Any] = {"steered": None, "vanilla": False, "add": {"mode": "add"}}
    said = {kind: wrapper.generate(**inputs, **GREEDY, rudder=rudder) for kind, rudder in kinds.items()}
    assert len({tuple(ids[0].tolist()) for ids in said.values()}) == 3
    return said


@pytest.fixture
def model(repo: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(repo)


def test_the_base_itself_is_steered(model: Any, inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    assert type(model) is LlavaForConditionalGeneration
    assert model.config.model_type == "llava"
    assert torch.equal(model.generate(**inputs, **GREEDY), expected["steered"])
    assert torch.equal(model.generate(**inputs, **GREEDY, rudder=False), expected["vanilla"])
    with pytest.raises(ValueError, match="already steered"):
        attach(model, settings())
    detach(model)
    assert torch.equal(model.generate(**inputs, **GREEDY), expected["vanilla"])


def test_arguments_go_where_they_belong(repo: Path, inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    options: dict[str, Any] = {"mode": "add", "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(repo, dtype=torch.float32, **options)
    assert model.config.text_config._attn_implementation == "eager"
    assert torch.equal(model.generate(**inputs, **GREEDY), expected["add"])
    with pytest.raises(ValueError, match="holds no weights"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(repo))


def test_the_first_architecture_loads_it(repo: Path) -> None:
    """As `transformers serve` and others do: a name that is looked up in transformers."""
    first = json.loads((repo / "config.json").read_text())["architectures"][0]
    assert isinstance(getattr(transformers, first).from_pretrained(repo), LlavaForConditionalGeneration)


def test_generation_config(repo: Path, model: Any, inputs: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    """A call takes its settings from its generation config or the model's, if it brings none itself."""

    def say(model: Any, stored: Any, **more: Any) -> torch.Tensor:
        return model.generate(**inputs, generation_config=GenerationConfig(**GREEDY, rudder=stored), **more)

    wrapper = AutoModel.from_pretrained(repo)
    for each in (model, wrapper):
        assert torch.equal(say(each, False), expected["vanilla"])
        assert torch.equal(say(each, {"mode": "add"}), expected["add"])
        assert torch.equal(say(each, None), expected["steered"])
        assert torch.equal(say(each, False, rudder={"mode": "add"}), expected["add"])
        assert torch.equal(say(each, False, rudder=True), expected["steered"])
    model.generation_config.rudder = {"mode": "add"}
    assert torch.equal(model.generate(**inputs, **GREEDY), expected["add"])
    assert torch.equal(say(model, False), expected["vanilla"])
    stock = wrapper.unwrap()
    custom = {"custom_generate": str(repo), "trust_remote_code": True}
    assert torch.equal(say(stock, {"mode": "add"}, **custom), expected["add"])
    # A stock model knows nothing of the attribute.
    assert torch.equal(say(stock, {"mode": "add"}), expected["vanilla"])


@pytest.mark.parametrize("rudder", ["off", 5, {"alpha_max": -1.0}, {"strength": 1.0}])
def test_bad_settings_are_refused(rudder: Any, model: Any, inputs: dict[str, Any]) -> None:
    named = f"rudder={rudder!r}" if not isinstance(rudder, dict) else next(iter(rudder))
    with pytest.raises((TypeError, ValueError), match=named):
        model.generate(**inputs, generation_config=GenerationConfig(**GREEDY, rudder=rudder))
