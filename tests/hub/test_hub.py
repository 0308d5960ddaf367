"""Sharing for real: the huggingface_hub client and transformers against a Hub on this machine.

Models are loaded in processes in which `rudder_hf` cannot be imported, as users of a repository would.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rudder_hf import RudderConfig, RudderForConditionalGeneration
from rudder_hf.hub.push import repo_files
from tests.support.hub import READER, WRITER, Elsewhere, LocalHub, Outcome, Request
from tests.support.repos import make_base, make_settings
from tests.support.toy import toy_model, toy_processor
from tests.support.zoo.base import INSTALLED

# What a process asks a model, here and elsewhere.
ASK = """
import json
def ask(model, processor, **options):
    parts = [{"type": "image", "path": "picture.png"}, {"type": "text", "text": "what is this"}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=True, return_dict=True,
        return_tensors="pt",
    )
    return model.generate(**inputs, max_new_tokens=8, do_sample=False, **options)[0].tolist()
"""
LOAD = f"""{ASK}
from transformers import AutoModel, AutoProcessor
model = AutoModel.from_pretrained("org/steered", trust_remote_code=True)
"""
PUSH = "from rudder_hf import RudderConfig, push_repo\n"


@pytest.fixture(autouse=True)
def fresh(hub: LocalHub) -> Iterator[None]:
    """A Hub that is well and has counted nothing."""
    hub.counted()
    yield
    hub.fault = None


@pytest.fixture(scope="module")
def expected(base: Path, elsewhere: Elsewhere) -> dict[str, list[int]]:
    """The answers of this process's code: steered, and not."""
    scope: dict[str, Any] = {}
    exec(ASK.replace("picture.png", str(elsewhere.work / "picture.png")), scope)
    model = RudderForConditionalGeneration.from_base(toy_model(seed=1), make_config())
    answers = {name: scope["ask"](model, toy_processor(), rudder=use) for name, use in (("on", True), ("off", False))}
    assert answers["on"] != answers["off"]
    return answers


def make_config(**changes: Any) -> RudderConfig:
    return RudderConfig(**{"layer": 2, "alpha_max": 40.0, "base_model_name_or_path": "org/base", **changes})


def push(elsewhere: Elsewhere, arguments: str, config: str = "layer=2", token: str | None = WRITER) -> Outcome:
    """Push settings for the base, in a process with the package."""
    code = f"print(push_repo(RudderConfig(base_model_name_or_path='org/base', {config}), {arguments}))"
    return elsewhere.run(PUSH + code, package=True, **({} if token is None else {"HF_TOKEN": token}))


def refused(outcome: Outcome, *words: str) -> None:
    """The process failed, and its last line says why."""
    assert outcome.status == 1, outcome.out
    message = outcome.err.strip().rsplit("Traceback", 1)[-1]
    assert all(word in message for word in words), message


def repos_asked(requests: list[Request]) -> set[str]:
    return {"/".join(request.path.removeprefix("/api/models").split("/")[1:3]) for request in requests}


# Loading


def test_load_by_id_without_the_package(elsewhere: Elsewhere, hub: LocalHub, expected: dict[str, Any]) -> None:
    """Every way in gives what this process's code gives; a load asks for each file once, and not again."""
    first = elsewhere.run(f"{LOAD}print(json.dumps([type(model).__module__, model.config.alpha_max]))")
    assert first.value[1] == 40.0
    assert first.value[0].startswith("transformers_modules.org.steered.")
    cold = hub.counted()
    assert repos_asked(cold) == {"org/steered", "org/base"}
    assert not any("custom_generate/" in request.path for request in cold)
    if INSTALLED >= (5, 18):
        # Before, transformers itself asks for some files again.
        assert len({(request.method, request.path) for request in cold}) == len(cold)
        # The code, config.json, the base's config, weights and generation config: HEAD and GET; one commit (the base
        # is pinned), two adapters.
        assert len(cold) == 2 * (1 + 1 + 3) + 1 + 2
    second = elsewhere.run(
        f"""{LOAD}
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoConfig
from transformers import AutoImageProcessor, AutoTokenizer
import importlib.util
trusted = dict(pretrained_model_name_or_path="org/steered", trust_remote_code=True)
processor, tokenizer = (kind.from_pretrained(**trusted) for kind in (AutoProcessor, AutoTokenizer))
kinds = [AutoModelForImageTextToText, AutoModelForMultimodalLM, AutoModelForCausalLM]
models = [model, *(kind.from_pretrained(**trusted) for kind in kinds)]
stock = AutoModelForImageTextToText.from_pretrained("org/base")
changed = kinds[0].from_pretrained(**trusted, alpha_max=0.0, attn_implementation="eager")
try:
    AutoImageProcessor.from_pretrained(**trusted)
except OSError as error:
    images = str(error)
print(json.dumps(dict(
    installed=importlib.util.find_spec("rudder_hf") is not None,
    config=AutoConfig.from_pretrained(**trusted, k=3.0).k,
    steered=[ask(model, processor) for model in models]
    + [ask(stock, processor, custom_generate="org/steered", trust_remote_code=True)],
    plain=[ask(model, processor, rudder=False), ask(stock, processor), ask(changed, processor)],
    attention=changed.model.config.text_config._attn_implementation,
    classes=[type(each).__name__ for each in (*models, processor)],
    same_ids=tokenizer("what is this").input_ids == processor.tokenizer("what is this").input_ids,
    images="preprocessor_config.json" in images,
)))"""
    ).value
    assert not second["installed"]
    assert second["config"] == 3.0
    assert second["steered"] == [expected["on"]] * 5
    assert second["plain"] == [expected["off"]] * 3
    assert second["attention"] == "eager"
    wrapped = ["RudderForConditionalGeneration"] * 3
    assert second["classes"] == [*wrapped, "LlavaForConditionalGeneration", "LlavaProcessor"]
    # AutoTokenizer gives the base's; AutoImageProcessor wants a file of its own, AutoProcessor has the base's.
    assert second["same_ids"]
    assert second["images"]


def test_saving_without_the_package(elsewhere: Elsewhere, hub: LocalHub, expected: dict[str, Any]) -> None:
    """The files that were loaded, but for the card; they load from their folder, and pushing takes the package."""
    code = f"""{LOAD.replace("trust_remote_code", "alpha_max=11.0, dtype='bfloat16', trust_remote_code")}
assert (model.config.alpha_max, str(model.dtype)) == (11.0, "torch.bfloat16")
model.save_pretrained("again")
assert "'alpha_max': 11.0" in open("again/custom_generate/generate.py").read()
model.config.alpha_max = 40.0
model.save_pretrained("again")
again = AutoModel.from_pretrained("again", trust_remote_code=True)
processor = AutoProcessor.from_pretrained("again", trust_remote_code=True)
try:
    model.push_to_hub("org/again")
except ImportError as error:
    print(json.dumps([ask(again, processor), str(error)]))
"""
    answer, told = elsewhere.run(code).value
    assert answer == expected["on"]
    assert "`pip install rudder_hf` and `rudder push FOLDER org/again`" in told
    files = {name: text for name, text in hub.store.files("org/steered").items() if name[0] not in ".R"}
    folder = elsewhere.work / "again"
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.relative_to(folder).as_posix(): path.read_bytes() for path in written} == files


@pytest.mark.parametrize("code", [True, False])
def test_the_snippet_of_the_card_runs(code: bool, elsewhere: Elsewhere, hub: LocalHub) -> None:
    """Both pipelines, model and processor, and one call of a stock model; without code in the repository too."""
    assert push(elsewhere, f"'org/shown', code={code}", "layer=2, alpha_max=40.0").status == 0
    card = hub.store.files("org/shown")["README.md"].decode()
    snippet = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0]
    snippet = snippet.replace("picture.jpg", "picture.png").replace("max_new_tokens=512", "max_new_tokens=8")
    load = """
import json, sys
from transformers import AutoModelForImageTextToText
base = AutoModelForImageTextToText.from_pretrained("org/base")
base.generation_config.max_new_tokens = 8
"""
    more = """
def said(ids): return processor.decode(ids[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True).strip()
steered = said(model.generate(**inputs, max_new_tokens=8))
assert answer(text=chat, max_new_tokens=8)[0]["generated_text"][-1]["content"].strip() == steered
assert describe("picture.png", max_new_tokens=8)[0]["generated_text"] == steered
assert describe(["picture.png"] * 2, max_new_tokens=8, batch_size=2) == [describe("picture.png", max_new_tokens=8)] * 2
print(json.dumps(["rudder_hf" in sys.modules, steered, said(out)]))
"""
    package, steered, last = elsewhere.run(load + snippet + more, package=not code).value
    assert package is not code
    # The last call of the snippet: the stock model with the repository's code; without code the unsteered one.
    assert (last == steered) is code


@pytest.mark.slow
def test_a_second_load_asks_once_and_offline_never(elsewhere: Elsewhere, hub: LocalHub) -> None:
    load = f"{LOAD}processor = AutoProcessor.from_pretrained('org/steered', trust_remote_code=True)\n"
    load += "print(json.dumps(ask(model, processor)))"
    online = elsewhere.run(load).value
    hub.counted()
    assert elsewhere.run(f"{LOAD}print(1)").value == 1
    # Have the settings moved? Their base is pinned.
    assert [request.path for request in hub.counted()] == ["/api/models/org/steered"]
    offline = elsewhere.run_alone(load, HF_HUB_OFFLINE="1")
    assert offline.value == online
    assert hub.counted() == []


def test_a_moved_base_is_loaded_as_it_was(
    elsewhere: Elsewhere, hub: LocalHub, home: Path, expected: dict[str, Any]
) -> None:
    pinned = hub.store.add("org/moving", home / "base")
    hub.store.add("org/on-moving", make_settings(home / "m", "org/moving", base_model_revision=pinned.sha))
    moved = hub.store.add("org/moving", make_base(home / "other", seed=2), "new weights")
    code = LOAD.replace("org/steered", "org/on-moving").replace("trust_remote_code", "{}trust_remote_code")
    code += "processor = AutoProcessor.from_pretrained('org/base')\n"
    code += "print(json.dumps([ask(model, processor), model.config.base_model_revision]))"
    then = elsewhere.run(code.replace("{}", ""))
    assert then.value == [expected["on"], pinned.sha]
    now = elsewhere.run(code.replace("{}", "base_model_revision='main', "))
    assert now.value[0] != expected["on"]
    assert now.value[1] == moved.sha


def test_a_private_base_with_token_and_cache_of_the_call(
    elsewhere: Elsewhere, hub: LocalHub, home: Path, base: Path, tmp_path: Path
) -> None:
    """Neither token nor cache of the machine has a part in it, to load, for `from_base`, and to pin a pushed base."""
    pinned = hub.store.add("org/hidden", base)
    hub.store.add("org/on-hidden", make_settings(home / "hidden", "org/hidden", base_model_revision=pinned.sha))
    moved = hub.store.add("org/hidden", make_base(home / "moved", seed=2), "new weights")
    hub.store.repos["org/hidden"].private = True
    code = f"""
import json
from rudder_hf import RudderConfig, RudderForConditionalGeneration
from transformers import AutoModel, AutoProcessor
given = dict(token={READER!r}, cache_dir={str(tmp_path)!r})
model = AutoModel.from_pretrained("org/on-hidden", **given)
processor = AutoProcessor.from_pretrained("org/on-hidden", **given)
load, wrap = RudderForConditionalGeneration.from_pretrained, RudderForConditionalGeneration.from_base
# Another base is not looked for at the revision of the stored one.
others = (
    wrap("org/hidden", RudderConfig(layer=2), **given),
    load("org/on-hidden", base_model_name_or_path="org/base", **given),
    wrap("org/base", RudderConfig.from_pretrained("org/on-hidden", **given), **given),
)
print(json.dumps([each.config.base_model_revision for each in (model, *others)]))
"""
    loaded = elsewhere.run(code, package=True)
    other = hub.store.repos["org/base"].refs["refs/heads/main"]
    assert loaded.value == [pinned.sha, moved.sha, other, other]
    cached = {path.name.removeprefix("models--org--") for path in tmp_path.glob("models--*")}
    assert cached == {"hidden", "on-hidden", "base"}
    # transformers itself notes in the machine's cache that there is no adapter, before 5.18 for which commit.
    noted = {".no_exist"} if INSTALLED >= (5, 18) else {".no_exist", "refs"}
    assert {path.name for path in (elsewhere.home / "hub").glob("models--org--*hidden/*")} <= noted
    code = f"{PUSH}push_repo(RudderConfig(base_model_name_or_path='org/hidden'), 'org/given', token={WRITER!r})"
    assert elsewhere.run(code, package=True).status == 0
    assert json.loads(hub.store.files("org/given")["config.json"])["base_model_revision"] == moved.sha


# Pushing


def test_push_branch_pull_request_and_tag(elsewhere: Elsewhere, hub: LocalHub) -> None:
    pushed = push(elsewhere, "'org/new', commit_message='first'")
    assert pushed.status == 0, pushed.err
    repo, pinned = hub.store.repos["org/new"], hub.store.repos["org/base"].refs["refs/heads/main"]
    files = hub.store.files("org/new")
    wanted = repo_files(
        RudderConfig(base_model_name_or_path="org/base", base_model_revision=pinned, layer=2), "org/new"
    )
    assert {name: text.decode() for name, text in files.items() if name != ".gitattributes"} == wanted
    head = repo.refs["refs/heads/main"]
    assert [commit.title for commit in repo.commits.values()] == ["initial commit", "first"]
    # Without a change there is no commit.
    assert push(elsewhere, "'org/new', commit_message='second'").out == pushed.out
    assert repo.refs["refs/heads/main"] == head
    repo.refs["refs/tags/v1"] = head
    assert push(elsewhere, "'org/new', revision='strong'", "layer=2, alpha_max=80.0").status == 0
    asked = push(elsewhere, "'org/new', create_pr=True", "layer=1").status
    assert asked == 0
    assert set(repo.refs) == {"refs/heads/main", "refs/heads/strong", "refs/pr/1", "refs/tags/v1"}
    assert repo.refs["refs/heads/main"] == repo.refs["refs/tags/v1"] == head
    stored = {
        name: json.loads(hub.store.files("org/new", name)["config.json"]) for name in ("strong", "refs/pr/1", "v1")
    }
    assert [config["alpha_max"] for config in stored.values()] == [80.0, 20.0, 20.0]
    assert stored["refs/pr/1"]["layer"] == 1
    # The revision of settings is not that of their base.
    hub.counted()
    load = LOAD.replace("org/steered", "org/new").replace("trust_remote_code", "revision='strong', trust_remote_code")
    assert elsewhere.run(f"{load}print(model.config.alpha_max)").value == 80.0
    assert not any("org/base" in request.path and "strong" in request.path for request in hub.counted())


@pytest.mark.slow
def test_private_repositories_and_roles_of_tokens(elsewhere: Elsewhere, hub: LocalHub) -> None:
    assert push(elsewhere, "'secret', private=True", "layer=2, alpha_max=40.0").status == 0
    assert hub.store.repos["org/secret"].private
    head = hub.store.repos["org/secret"].refs["refs/heads/main"]
    refused(push(elsewhere, "'org/secret'", "layer=3", token=READER), "403", "write token")
    refused(push(elsewhere, "'org/secret'", "layer=3", token=None), "401")
    refused(push(elsewhere, "'org/other'", token=READER), "403")
    assert hub.store.repos["org/secret"].refs["refs/heads/main"] == head
    assert "org/other" not in hub.store.repos
    load = LOAD.replace("org/steered", "org/secret") + "print(json.dumps(model.config.layer))"
    refused(elsewhere.run(load), "org/secret", "private")
    assert elsewhere.run(load, HF_TOKEN=READER).value == 2
    token = load.replace("trust_remote_code=True", f"trust_remote_code=True, token='{READER}'")
    assert elsewhere.run(token).value == 2
    # Nobody's settings become public because a repository of that name was, in the user's own namespace too.
    for public in ("org/steered", "steered"):
        refused(push(elsewhere, f"{public!r}, private=True"), "org/steered exists and is public")


FOREIGN = {
    "weights": {"config.json": '{"model_type": "llava"}', "model.safetensors": ""},
    "damaged": {"config.json": "["},
    "data": {"train.csv": "a,b"},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_push_never_overwrites_a_model(elsewhere: Elsewhere, hub: LocalHub, tmp_path: Path, kind: str) -> None:
    """Also where its name is given without a namespace, which is the user's own."""
    for name, text in FOREIGN[kind].items():
        (tmp_path / name).write_text(text)
    hub.store.add(f"org/foreign-{kind}", tmp_path)
    before = hub.store.files(f"org/foreign-{kind}")
    for repo in (f"org/foreign-{kind}", f"foreign-{kind}"):
        told = f"org/foreign-{kind} holds something else than RUDDER settings"
        refused(push(elsewhere, repr(repo)), told, "of their own")
    assert hub.store.files(f"org/foreign-{kind}") == before


def test_a_push_keeps_an_edited_card_and_removes_unwanted_code(
    elsewhere: Elsewhere, hub: LocalHub, tmp_path: Path
) -> None:
    assert push(elsewhere, "'org/edited'").status == 0
    card = hub.store.files("org/edited")["README.md"].decode()
    (tmp_path / "README.md").write_text(card + "\nMy own words.\n")
    for name in ("notes.md", "plot_rudder.py"):
        (tmp_path / name).write_text("x")
    hub.store.add("org/edited", tmp_path)
    pushed = push(elsewhere, "'org/edited', card='Words of the folder.'", "layer=1")
    assert pushed.status == 0
    assert "was edited on the Hub and is kept" in pushed.err
    files = hub.store.files("org/edited")
    assert files["README.md"].decode().endswith("My own words.\n")
    assert json.loads(files["config.json"])["layer"] == 1
    assert set(files) == {
        *(".gitattributes", "README.md", "config.json", "modeling_rudder.py", "pipeline_rudder.py"),
        *("custom_generate/generate.py", "custom_generate/requirements.txt", "notes.md", "plot_rudder.py"),
    }
    assert push(elsewhere, "'org/edited', replace_card=True", "layer=1").status == 0
    assert "My own words" not in hub.store.files("org/edited")["README.md"].decode()
    # Not edited: a card follows its settings without a word.
    again = push(elsewhere, "'org/edited'", "layer=0")
    assert "was edited" not in again.err
    assert "| `layer` | 0 |" in hub.store.files("org/edited")["README.md"].decode()
    assert push(elsewhere, "'org/edited', code=False", "layer=0").status == 0
    assert set(hub.store.files("org/edited")) == {
        *(".gitattributes", "README.md", "config.json", "notes.md", "plot_rudder.py"),
    }


def rudder(elsewhere: Elsewhere, *arguments: object, token: str | None = WRITER) -> Outcome:
    """The command line, elsewhere."""
    code = f"from rudder_hf.cli.main import app\napp({[str(argument) for argument in arguments]!r})"
    return elsewhere.run(code, package=True, **({} if token is None else {"HF_TOKEN": token}))


@pytest.mark.slow
def test_the_command_pushes_folders_and_presets(elsewhere: Elsewhere, hub: LocalHub, home: Path, base: Path) -> None:
    # A preset's base has to exist, for its commit to be pinned.
    hub.store.add("llava-hf/llava-1.5-7b-hf", base)
    shown = rudder(elsewhere, "push", "llava-1.5-7b", "org/preset", "--dry-run", token=None)
    assert shown.status == 0, shown.err
    assert hub.counted() == []
    for word in ("config.json", "modeling_rudder.py", "custom_generate/generate.py", "# RUDDER settings for llava-hf"):
        assert word in shown.out
    pushed = rudder(elsewhere, "push", "llava-1.5-7b", "org/preset", "--private")
    assert pushed.status == 0, pushed.err
    head = hub.store.repos["org/preset"].refs["refs/heads/main"]
    assert pushed.out.startswith(f"{hub.url}/org/preset/commit/{head}\nNext: rudder generate --model org/preset")
    config = json.loads(hub.store.files("org/preset")["config.json"])
    assert (config["layer"], config["alpha_max"]) == (30, 20.0)
    assert '"org/preset"' in hub.store.files("org/preset")["README.md"].decode()
    folder = make_settings(home / "mine", "org/base", alpha_max=3.0)
    assert rudder(elsewhere, "push", folder, "org/mine").status == 0
    assert '"org/mine"' in hub.store.files("org/mine")["README.md"].decode()
    edited = (folder / "README.md").read_text().replace("## Limits", "## Limits\n\n- My own.")
    (folder / "README.md").write_text(edited)
    asked = rudder(elsewhere, "push", folder, "org/mine", "--create-pr", "--no-code")
    assert asked.out.startswith(f"{hub.url}/org/mine/discussions/1")
    assert not [name for name in hub.store.files("org/mine", "refs/pr/1") if name.endswith(".py")]
    assert hub.store.files("org/mine", "refs/pr/1")["README.md"].decode() == edited


@pytest.mark.slow
def test_the_command_refuses_in_one_line(elsewhere: Elsewhere, hub: LocalHub, home: Path) -> None:
    local = make_settings(home / "local", home / "base")
    empty = home / "empty"
    empty.mkdir()
    repo = "org/never"
    for arguments, words, status in [
        (("llava-9", repo), "neither a folder nor a preset", 2),
        ((empty, repo), "no config.json", 2),
        ((home / "base", repo), "holds no RUDDER settings", 2),
        ((local, repo), "which others cannot load", 2),
        ((home / "steered", "not/an/id"), "namespace/name", 2),
        ((home / "steered", "not/an/id", "--dry-run"), "namespace/name", 2),
        ((home / "steered", "org/base"), "holds something else", 2),
        ((home / "steered", repo, "--token", READER), "may not write", 1),
        ((home / "steered", repo, "--token", "hf_unknown"), "hf auth login", 1),
    ]:
        outcome = rudder(elsewhere, "push", *arguments)
        errors = [line for line in outcome.err.splitlines() if line.startswith("Error: ")]
        assert (outcome.status, outcome.out, len(errors)) == (status, "", 1), outcome.err
        assert words in errors[0]
    assert repo not in hub.store.repos


# A Hub that is ill


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"), [("unavailable", "503"), ("silent", "cannot be reached"), ("dropped", "closed the connection")]
)
def test_a_push_to_an_ill_hub(fault: str, words: str, elsewhere: Elsewhere, hub: LocalHub) -> None:
    hub.fault = fault
    code = f"{PUSH}import rudder_hf.hub.push as s\ns._HUB_PATIENCE = 0.5\n"
    code += f"push_repo(RudderConfig(base_model_name_or_path='org/base'), 'org/{fault}')"
    refused(elsewhere.run(code, package=True, HF_TOKEN=WRITER), words)
    repo = hub.store.repos.get(f"org/{fault}")
    assert repo is None or [commit.title for commit in repo.commits.values()] == ["initial commit"]
    hub.fault = None
    assert push(elsewhere, f"'org/{fault}'").status == 0
    assert "config.json" in hub.store.files(f"org/{fault}")


# Strangers


def test_installed_code_runs_instead_of_a_strangers(elsewhere: Elsewhere, hub: LocalHub, home: Path) -> None:
    folder = make_settings(home / "code", "org/base")
    mark = home / "ran"
    for file in folder.glob("*_rudder.py"):
        file.write_text(f"open({str(mark)!r}, 'w')\n{file.read_text()}".replace("from __future__", "#", 1))
    hub.store.add("stranger/code", folder)
    code = LOAD.replace("org/steered", "stranger/code").replace("from trans", "import rudder_hf\nfrom trans", 1)
    for trust in ("trust_remote_code=True", "trust_remote_code=False", "alpha_max=3.0"):
        loaded = elsewhere.run(code.replace("trust_remote_code=True", trust) + "print(1)", package=True)
        assert loaded.value == 1
    assert not mark.exists()
    refused(elsewhere.run(code.replace("import rudder_hf\n", "").replace("=True", "=False")), "trust_remote_code")
    # transformers' pipeline of this name is the one exception: it looks for its code in the repository.
    named = "pipeline('image-to-text', model='stranger/code')"
    refused(elsewhere.run(f"import rudder_hf, transformers\ntransformers.{named}", package=True), "trust_remote_code")
    assert elsewhere.run(f"import rudder_hf\nrudder_hf.{named}", package=True).status == 0
    assert not mark.exists()


def test_trusting_settings_is_not_trusting_their_base(elsewhere: Elsewhere, hub: LocalHub, home: Path) -> None:
    folder, mark = make_base(home / "remote"), home / "base-ran"
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "remote_llava",
        "auto_map": {"AutoConfig": "remote.Config", "AutoModelForImageTextToText": "remote.Model"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "remote.py").write_text(
        f"from transformers import LlavaConfig, LlavaForConditionalGeneration\nopen({str(mark)!r}, 'w')\n"
        "class Config(LlavaConfig):\n    model_type = 'remote_llava'\n"
        "class Model(LlavaForConditionalGeneration):\n    config_class = Config\n"
    )
    hub.store.add("org/remote", folder)
    hub.store.add("org/on-remote", make_settings(home / "r", "org/remote"))
    code = LOAD.replace("org/steered", "org/on-remote")
    for way in (code, f"import rudder_hf\n{code}"):
        refused(elsewhere.run(way, package=way != code), "org/remote", "base_trust_remote_code=True")
    assert not mark.exists()
    trusting = code.replace("trust_remote_code=True", "trust_remote_code=True, base_trust_remote_code=True")
    assert elsewhere.run(trusting + "print(json.dumps(type(model.model).__name__))").value == "Model"
    assert mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("auto_class", ["AutoModel", "AutoProcessor", "AutoTokenizer"])
def test_settings_lead_to_a_model_and_no_further(
    auto_class: str, elsewhere: Elsewhere, hub: LocalHub, home: Path
) -> None:
    """Not to other settings. Of an adapter transformers would load whatever its author named."""
    adapter = make_settings(home / "around", "stranger/adapter")
    hub.store.add("stranger/around", adapter)
    hub.store.add("stranger/itself", make_settings(home / "itself", "stranger/itself"))
    hub.store.add("stranger/there", make_settings(home / "there", "stranger/back"))
    hub.store.add("stranger/back", make_settings(home / "back", "stranger/there"))
    code = f"from transformers import {auto_class}\n{auto_class}.from_pretrained({{!r}}, trust_remote_code=True)"
    for repo in ("stranger/itself", "stranger/there"):
        hub.counted()
        refused(elsewhere.run(code.format(repo)), "holds RUDDER settings itself")
        assert len(hub.counted()) < 30
    for named in (str(home / "base"), "stranger/around", "org/base"):
        stored = {"peft_type": "LORA", "base_model_name_or_path": named}
        (adapter / "adapter_config.json").write_text(json.dumps(stored))
        hub.store.add("stranger/adapter", adapter, named)
        hub.counted()
        with_package = elsewhere.run(f"import rudder_hf\n{code.format('stranger/around')}", package=True)
        refused(with_package, "holds a PEFT adapter, not a model")
        assert len(hub.counted()) < 30


@pytest.mark.slow
def test_processes_that_load_at_the_same_time(elsewhere: Elsewhere) -> None:
    """Four processes, warm Hub cache, empty cache of remote code, twelve rounds.

    transformers copies remote code without a lock, so that a process can read a file while another one truncates it.
    With one file of code the window is one write, which a busy machine can hit once; with 44 it was hit every time.
    """
    code = """
import json, os, shutil, traceback
from transformers import AutoConfig
from transformers.dynamic_module_utils import HF_MODULES_CACHE, get_class_from_dynamic_module
def load():
    config = AutoConfig.from_pretrained("org/steered", trust_remote_code=True)
    get_class_from_dynamic_module(config.auto_map["AutoModel"], "org/steered")
def child():
    try:
        load()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
if os.fork() == 0:  # warms the Hub cache
    child()
os.wait()
failed = []
for number in range(12):
    shutil.rmtree(HF_MODULES_CACHE, ignore_errors=True)
    children = [os.fork() or child() for _ in range(4)]
    failed += [number for one in children if os.waitpid(one, 0)[1] != 0]
print(json.dumps(failed))
"""
    outcome = elsewhere.run(code)
    assert len(outcome.value) <= 1, outcome.err[-3000:]


@pytest.mark.parametrize("way", ["AutoModel", "AutoProcessor"])
@pytest.mark.parametrize("package", [False, True])
def test_settings_from_the_hub_lead_to_no_folder(
    way: str, package: bool, elsewhere: Elsewhere, hub: LocalHub, home: Path, base: Path
) -> None:
    """Neither by its path, nor because a folder of the base's name is in the working directory."""
    hub.store.add("stranger/path", make_settings(home / "path", home / "base"))
    hub.store.add("stranger/local", make_settings(home / "local", "models/secret"))
    shutil.copytree(base, elsewhere.work / "models" / "secret")
    try:
        for repo, words in (("stranger/path", "from the Hub"), ("stranger/local", "working directory")):
            code = f"from transformers import {way}\n{way}.from_pretrained({repo!r}, trust_remote_code=True)"
            refused(elsewhere.run(code, package=package), "base_model_name_or_path", words)
    finally:
        shutil.rmtree(elsewhere.work / "models")
