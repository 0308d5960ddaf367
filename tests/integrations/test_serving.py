"""`transformers serve` and `transformers chat` on settings, with the real openai client and a server of its own."""

from __future__ import annotations

import base64
import io
import json
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rudder_hf.scenes import embedded
from tests.support.repos import inputs_for
from tests.support.serving import (
    FOLDER,
    PAGE,
    ROOT,
    elsewhere_environment,
    page_command,
    serving,
    transformers_command,
)

pytestmark = pytest.mark.slow

openai = pytest.importorskip("openai", reason="the client of the tests, and needed by transformers serve")
pytest.importorskip("fastapi", reason="needed by transformers serve")
pytest.importorskip("uvicorn", reason="needed by transformers serve")

QUESTION = "Please help me describe the image in detail"
NEW = 40
IMAGES = sorted((ROOT / "examples" / "images").glob("*.png"))[:3]
# Far beyond what suits the model, so that its answers are others.
STRONG: dict[str, Any] = {"alpha_max": 5 * embedded.config().alpha_max, "mode": "add", "steer_first_token": True}


def say(model: Any, processor: Any, path: Path, rudder: Any = None, new: int = NEW) -> str:
    """What an image gets from a call of its own."""
    inputs = inputs_for(processor, [Image.open(path)], QUESTION)
    ids = model.generate(**inputs, max_new_tokens=new, do_sample=False, rudder=rudder)
    return str(processor.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


@pytest.fixture(scope="module")
def lone() -> dict[str, list[str]]:
    """What each image gets from a call of its own, by kind of request."""
    parts = embedded.load()
    kinds = {"steered": None, "vanilla": False, "strong": STRONG}
    said = {kind: [say(*parts, path, rudder) for path in IMAGES] for kind, rudder in kinds.items()}
    assert len({tuple(answers) for answers in said.values()}) == 3
    assert len(set(said["steered"])) == len(IMAGES)
    return said


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that was started as the page says, in a folder with the embedded model's settings."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "examples").symlink_to(ROOT / "examples")
    embedded.load()[0].save_pretrained(folder / "my-settings")
    with serving(page_command("transformers serve"), folder, folder / "home") as address:
        yield address


def connect(server: str) -> Any:
    """A client with a connection for each request: the server closes idle ones after 5 s, while a client may write."""
    close = {"Connection": "close"}
    return openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=300, default_headers=close)


@pytest.fixture
def client(server: str) -> Iterator[Any]:
    with connect(server) as client:
        yield client


def question(path: Path) -> list[dict[str, Any]]:
    buffer = io.BytesIO()
    Image.open(path).save(buffer, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]


def ask(client: Any, path: Path, stream: bool = False, **extra: Any) -> str:
    messages = [{"role": "user", "content": question(path)}]
    answer = client.chat.completions.create(
        model="my-settings", messages=messages, max_tokens=NEW, temperature=0, stream=stream, extra_body=extra
    )
    if not stream:
        return str(answer.choices[0].message.content)
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer)


def with_settings(rudder: Any) -> dict[str, str]:
    """The field by which a request chooses its settings."""
    return {"generation_config": json.dumps({"rudder": rudder})}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_answers_are_those_of_lone_calls(client: Any, lone: dict[str, list[str]], stream: bool) -> None:
    assert [ask(client, path, stream) for path in IMAGES] == lone["steered"]


def test_the_request_of_the_page(client: Any) -> None:
    codes = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (code,) = [code for code in codes if "generation_config" in code]
    place = "data:image/png;base64,..."
    assert place in code
    names = {"client": client, "json": json}
    exec(code.replace(place, question(IMAGES[0])[0]["image_url"]["url"]), names)
    assert names["answer"].choices[0].message.content


def test_the_answers_of_the_page() -> None:
    """vLLM answers as plain transformers does, so that its answers on the page can be checked without it."""
    block = PAGE.read_text().split("<!-- vllm answers -->")[1].split("<!--")[0]
    (name, steered), (_, vanilla) = re.findall(r"^(\S+\.png): (.*)$", block, re.MULTILINE)
    parts, path = embedded.load(), ROOT / "examples" / "images" / name
    assert [say(*parts, path, rudder, new=256).strip() for rudder in (None, False)] == [steered, vanilla]
    assert steered != vanilla


def test_clients_at_once(server: str, lone: dict[str, list[str]]) -> None:
    """Clients with images and settings of their own, all in flight together, get what they get alone."""
    kinds = {"steered": {}, "vanilla": with_settings(False), "strong": with_settings(STRONG)}
    jobs = [
        (0, "steered", True),
        (1, "steered", False),
        (2, "vanilla", True),
        (0, "strong", False),
        (1, "strong", True),
    ]
    together = threading.Barrier(len(jobs))

    def one(job: tuple[int, str, bool]) -> str:
        index, kind, stream = job
        with connect(server) as client:
            together.wait(60)
            return ask(client, IMAGES[index], stream, **kinds[kind])

    with ThreadPoolExecutor(len(jobs)) as pool:
        answers = list(pool.map(one, jobs))
    assert answers == [lone[kind][index] for index, kind, _ in jobs]


def test_responses(client: Any, lone: dict[str, list[str]]) -> None:
    """The newer of OpenAI's interfaces, where transformers streams unless it is told not to."""
    image, text = question(IMAGES[1])
    content = [
        {"type": "input_image", "image_url": image["image_url"]["url"]},
        {"type": "input_text", "text": text["text"]},
    ]
    answer = client.responses.create(
        model="my-settings",
        input=[{"role": "user", "content": content}],
        max_output_tokens=NEW,
        temperature=0,
        stream=False,
    )
    assert answer.output_text == lone["steered"][1]


def test_bad_settings_are_told_and_survived(client: Any, lone: dict[str, list[str]]) -> None:
    """transformers serve answers 500 without the reason, and gives the reason in a stream; the server lives on."""
    with pytest.raises(openai.InternalServerError):
        ask(client, IMAGES[0], **with_settings({"alpha_max": -1}))
    with pytest.raises(openai.APIError) as told:
        ask(client, IMAGES[0], True, **with_settings({"alpha": 3}))
    assert "alpha" in str(told.value.body)
    with pytest.raises(openai.UnprocessableEntityError):
        ask(client, IMAGES[0], rudder=False)
    assert ask(client, IMAGES[0]) == lone["steered"][0]


def test_aborted_streams_leave_nothing_behind(client: Any, lone: dict[str, list[str]]) -> None:
    for path in IMAGES:
        messages = [{"role": "user", "content": question(path)}]
        stream = client.chat.completions.create(
            model="my-settings", messages=messages, max_tokens=NEW, temperature=0, stream=True
        )
        next(iter(stream))
        stream.close()
    assert ask(client, IMAGES[2]) == lone["steered"][2]


def run_script(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(FOLDER / name), run_name="__main__")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        ("python examples/serving/client.py photo.png other.png", "steered"),
        ("python examples/serving/client.py photo.png --model my-settings --rudder false", "vanilla"),
    ],
)
def test_client_script(
    start: str,
    kind: str,
    server: str,
    lone: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The commands of the page, with images in the places that they name."""
    names = {"photo.png": 0, "other.png": 1}
    for name, index in names.items():
        (tmp_path / name).write_bytes(IMAGES[index].read_bytes())
    monkeypatch.chdir(tmp_path)
    words = page_command(start)
    more = ["--base-url", f"{server}/v1", "--max-tokens", str(NEW)]
    run_script("client.py", [*words[2:], *more], monkeypatch)
    shown = [f"{name}: {lone[kind][index].strip()}" for name, index in names.items() if name in words]
    assert capsys.readouterr().out.splitlines() == shown


def in_one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("kind", "options"), [("steered", []), ("vanilla", ["--generation-config", "unsteered/generation_config.json"])]
)
def test_chat(server: str, lone: dict[str, list[str]], kind: str, options: list[str], tmp_path: Path) -> None:
    """An image reaches `transformers chat` by its file of examples, settings by a generation config."""
    words = page_command("transformers chat my-settings")
    words[words.index("http://localhost:8000")] = server
    words[words.index("max_new_tokens=256")] = f"max_new_tokens={NEW}"
    words[words.index("examples/serving/images.yaml")] = str(FOLDER / "images.yaml")
    (tmp_path / "unsteered").mkdir()
    (tmp_path / "unsteered" / "generation_config.json").write_text('{"rudder": false}')
    done = subprocess.run(
        transformers_command([*words, *options]),
        input="!example 2\n!exit\n",
        cwd=tmp_path,
        env=elsewhere_environment(tmp_path / "home") | {"COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert in_one_line(lone[kind][1]) in in_one_line(done.stdout), done.stderr[-2000:]


def test_pipeline_in_a_thread_pool(
    lone: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real threads on one pipeline, and every image several times."""
    embedded.load()[0].save_pretrained(tmp_path / "my-settings")
    for index, path in enumerate(IMAGES * 2):
        (tmp_path / f"{index}.png").write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    names = [f"{index}.png" for index in range(2 * len(IMAGES))]
    words = page_command("python examples/serving/thread_pool.py")
    options = words[words.index("--model") :]
    run_script("thread_pool.py", [*names, *options, "--max-new-tokens", str(NEW)], monkeypatch)
    wanted = [f"{name}: {answer.strip()}" for name, answer in zip(names, lone["steered"] * 2, strict=True)]
    assert capsys.readouterr().out.splitlines() == wanted
