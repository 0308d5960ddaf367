"""The openai client against vLLM's OpenAI server: images, strength per request, many at once, errors, aborts."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.serving import free_port, wait_until_healthy
from tests.vllm.cases import Case
from tests.vllm.engines import SETTINGS, Expected

_SLOTS = 8
_BAD: tuple[tuple[dict[str, Any], str], ...] = (
    ({"rudder_alpha_max": -1}, "alpha_max"),
    ({"rudder_alpha": 3}, "alpha"),
    ({"rudder_layer": 1}, "layer"),
    ({"ruder": 0}, "ruder"),
    ({"alpha_max": 1}, "rudder_alpha_max"),
    ({"rudder_contrast_after": 3}, "contrast_after"),
)
_SCRIPT = Path(__file__).parent.parent.parent / "examples" / "serving" / "client.py"


@contextmanager
def server(folder: Path, log: Path, rudder: dict[str, Any], patience: float = 1800.0) -> Iterator[str]:
    """vLLM's server on a free port, ended with its workers."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"),
        *("--max-model-len", "256", "--max-num-seqs", str(_SLOTS), "--block-size", "32", "--enforce-eager"),
        *("--additional-config", json.dumps({"rudder": rudder})),
    ]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}/health", process, log, patience)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            # Its own session: the engine's workers go with it.
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def chat(case: Case) -> list[dict[str, Any]]:
    """A case as messages of a chat; its text has no placeholder."""
    content: list[dict[str, Any]] = []
    if case.image is not None:
        file = io.BytesIO()
        case.image.save(file, "png")
        address = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        content.append({"type": "image_url", "image_url": {"url": address}})
    return [{"role": "user", "content": [*content, {"type": "text", "text": case.text.removeprefix("<image> ")}]}]


def rendered(case: Case, processor: Any) -> Case:
    """The case with the text that the server makes of its chat."""
    content = [] if case.image is None else [{"type": "image"}]
    content.append({"type": "text", "text": case.text.removeprefix("<image> ")})
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    return replace(case, text=text)


def flat(rudder: Any) -> dict[str, Any]:
    """A request's settings as `vllm_xargs` takes them."""
    if rudder is None:
        return {}
    if isinstance(rudder, bool):
        return {"rudder": rudder}
    return {f"rudder_{name}": value for name, value in rudder.items()}


async def ask(client: Any, case: Case) -> list[int]:
    """Send one request and return the tokens of its answer."""
    extra = {"ignore_eos": True, "return_token_ids": True, "vllm_xargs": flat(case.rudder)}
    reply = await client.chat.completions.create(
        model="tiny", messages=chat(case), max_tokens=case.length, temperature=0.0, extra_body=extra
    )
    return list(reply.choices[0].model_extra["token_ids"])


async def refused(client: Any, case: Case, xargs: dict[str, Any], named: str) -> bool:
    """Whether a request is answered with status 400 and a reason that names what is wrong."""
    from openai import BadRequestError

    try:
        await client.chat.completions.create(
            model="tiny", messages=chat(case), max_tokens=4, extra_body={"vllm_xargs": xargs}
        )
    except BadRequestError as error:
        return named in str(error)
    return False


async def abandon(client: Any, case: Case) -> None:
    """Start a streamed answer and leave after its first words."""
    stream = await client.chat.completions.create(
        model="tiny",
        messages=chat(case),
        max_tokens=150,
        stream=True,
        extra_body={"ignore_eos": True, "vllm_xargs": flat(case.rudder)},
    )
    async for _ in stream:
        break
    await stream.close()


async def _session(address: str, cases: Sequence[Case], wanted: Sequence[list[int]]) -> dict[str, Any]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=address, api_key="none", timeout=1800.0, max_retries=0) as client:
        got = await asyncio.gather(*(ask(client, case) for case in cases))
        refusals = await asyncio.gather(*(refused(client, cases[0], *bad) for bad in _BAD))
        steered = [case for case in cases if not case.says_no]
        await asyncio.gather(*(abandon(client, case) for case in steered * 2))
        again = await asyncio.gather(*(ask(client, case) for case in cases))
    return {
        "requests in flight": len(cases),
        "slots": _SLOTS,
        "steered": len(steered),
        "right": sum(a == b for a, b in zip(got, wanted, strict=True)),
        "bad requests": len(_BAD),
        "answered with 400 and the reason": sum(refusals),
        "aborted in mid-stream": 2 * len(steered),
        "right after the aborts": sum(a == b for a, b in zip(again, wanted, strict=True)),
    }


def metrics(address: str) -> tuple[dict[str, int], dict[str, str]]:
    """What `/metrics` says of requests, by outcome, and the labels of the metric that names the settings."""
    with urllib.request.urlopen(address.removesuffix("v1") + "metrics", timeout=60) as answer:
        page = answer.read().decode()
    counted = re.findall(r'^vllm:rudder_requests_total\{outcome="(\w+)"\} (\S+)$', page, re.MULTILINE)
    (labels,) = re.findall(r"^vllm:rudder_info\{(.*)\} 1.0$", page, re.MULTILINE) or [""]
    return {outcome: int(float(value)) for outcome, value in counted}, dict(re.findall(r'(\w+)="([^"]*)"', labels))


def right_counters(cases: Sequence[Case]) -> dict[str, int]:
    """What they have to be after a session: all cases twice, the steered ones twice more, and the bad requests."""
    steered = sum(not case.says_no for case in cases)
    unsteered = sum(case.rudder is False for case in cases)
    no_image = len(cases) - steered - unsteered
    return {"steered": 4 * steered, "unsteered": 2 * unsteered, "no_image": 2 * no_image, "refused": len(_BAD)}


def run_script(address: str, image: Path, case: Case) -> str:
    """What examples/serving/client.py prints for a case."""
    rudder = [] if case.rudder is None else ["--rudder", json.dumps(case.rudder)]
    command = [sys.executable, str(_SCRIPT), str(image), "--model", "tiny", "--base-url", address]
    command += ["--question", case.text.removeprefix("<image> "), "--max-tokens", str(case.length), *rudder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.removeprefix(f"{image.name}: ").strip()


def post(address: str, case: Case, **more: Any) -> tuple[int, str]:
    """Status and answer, or reason, of a request with fields of vLLM's own."""
    body = {"model": "tiny", "messages": chat(case), "max_tokens": 4, "temperature": 0.0, **more}
    request = urllib.request.Request(
        f"{address}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, json.load(answer)["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def compare_client(folder: Path, cases: Sequence[Case], store: Path, log: Path) -> dict[str, Any]:
    """Run the server and the client and count what came back right."""
    expected = Expected(folder, SETTINGS, store)
    rendered_cases = [rendered(case, expected.processor) for case in cases]
    wanted = expected.answers(rendered_cases)
    # The same image and question for the script of the page: as the engine has it, unsteered, and stronger.
    first = next(case for case in cases if case.image is not None)
    asked = [replace(first, length=16, rudder=rudder) for rudder in (None, False, {"alpha_max": 40.0, "k": 1.0})]
    told = [
        expected.processor.tokenizer.decode(answer, skip_special_tokens=True).strip()
        for answer in expected.answers([rendered(case, expected.processor) for case in asked])
    ]
    image = log.with_name("photo.png")
    assert first.image is not None
    first.image.save(image)
    beams = {"use_beam_search": True, "n": 2}
    with server(folder, log, SETTINGS) as address:
        found = asyncio.run(_session(address, cases, wanted))
        found["counted"], found["info"] = metrics(address)
        found["the page's client, right"] = sum(
            run_script(address, image, case) == text for case, text in zip(asked, told, strict=True)
        )
        choice = post(address, first, structured_outputs={"choice": ["cat", "dog"]})
        beam = post(address, first, **beams)
    with server(folder, log.with_name("quiet.log"), {**SETTINGS, "steer_by_default": False}) as address:
        quiet_beam = post(address, first, **beams)
    found |= {
        "structured output": choice[0],
        "beam search": beam[0],
        "beam search where steering is not the default": quiet_beam[0],
        "the log says that it steers": "RUDDER steers layer" in log.read_text(),
    }
    found["passed"] = (
        found["right"] == found["right after the aborts"] == len(cases)
        and found["answered with 400 and the reason"] == found["bad requests"]
        and found["counted"] == right_counters(cases)
        and found["info"] == {"layer": "2", "alpha_max": "24", "settings": "", "revision": ""}
        and found["the page's client, right"] == len(asked) == len(set(told))
        and choice[0] == 200
        and choice[1].strip() in ("cat", "dog")
        and (beam[0], quiet_beam[0]) == (400, 200)
        and "steer_by_default" in beam[1]
        and found["the log says that it steers"]
    )
    return {"name": "openai-client", **found}
