"""The demo without a browser: what the page shows, its presets and limits, what visitors get."""

from __future__ import annotations

import ast
import http.client
import itertools
import math
import socket
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from PIL import Image

from rudder_hf import RudderConfig
from rudder_hf.analyze.examples import RULES, Examples, ask
from rudder_hf.analyze.tokens import TracedAnswer, mark_differences, token_view
from rudder_hf.demo import serve
from rudder_hf.demo.serve import Engine
from rudder_hf.demo.view import (
    LONGEST_PROMPT,
    PRESET_NAMES,
    SETTINGS,
    Frame,
    View,
    answer_verdict,
    paint,
    preset,
    preset_of,
    slider_ranges,
    steered_title,
)
from rudder_hf.scenes import embedded
from rudder_hf.scenes.embedded import example_image, recognise_example, write_examples
from tests.support.analyzing import traced
from tests.support.command import refused, rudder
from tests.support.helpers import in_threads

OWN = {name: getattr(RudderConfig, name) for name in SETTINGS} | {"alpha_max": 12.5}
DEFAULT = View(2, "what is this", OWN)


def with_settings(view: View, **settings: Any) -> View:
    return replace(view, settings={**view.settings, **settings})


def test_verdicts() -> None:
    assert answer_verdict(None, True) == answer_verdict([], False) == ""
    assert "Names no object that is not in the image" in answer_verdict([], True)
    assert answer_verdict(["cup", "cup", "dog"], False).count("<del>") == 2
    assert "<img" not in answer_verdict(["<img>"], True)
    assert answer_verdict(None, False, stopped=True) == answer_verdict([], True, stopped=True) == "Stopped early."
    assert answer_verdict(["cup"], False, stopped=True) == "Stopped early. Not in the image: <del>cup</del>"


@pytest.mark.parametrize(
    ("changes", "prompt", "word"),
    [
        ({"alpha_max": math.nan}, "what is this", "alpha_max"),
        ({"k": None}, "what is this", "k is empty"),
        *(({}, prompt, str(LONGEST_PROMPT)) for prompt in (None, "  ", "a" * (LONGEST_PROMPT + 1))),
    ],
)
def test_what_cannot_be_set_is_refused(changes: dict[str, Any], prompt: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        View.from_controls(2, prompt, list((OWN | changes).values()))
    view = View.from_controls(None, "p", list((OWN | {"k": 2, "alpha_max": 3}).values()))
    assert view == View(None, "p", {**OWN, "k": 2.0, "alpha_max": 3.0})
    assert type(view.settings["k"]) is float


def test_presets_are_within_the_sliders_and_recognised_and_the_title_says_what_is_on() -> None:
    for own in (OWN, OWN | {"alpha_max": 0.7, "k": 30.0, "contrast": 5.5}, OWN | {"alpha_max": 0.0}):
        for name in PRESET_NAMES:
            settings = preset(name, own)
            assert all(low <= settings[each] <= high for each, (low, high, *_) in slider_ranges(own).items())
            assert preset(str(preset_of(replace(DEFAULT, settings=settings), own)), own) == settings
        assert preset("calibrated", own) == own
        assert preset("strong", own)["alpha_max"] == 2 * own["alpha_max"]
        assert preset_of(with_settings(DEFAULT, k=0.5), own) is None
    strengths = {(1.0, 0.0): "With RUDDER", (0.0, 0.5): "With contrast", (1.0, 0.5): "With RUDDER and contrast"}
    for (alpha_max, contrast), words in (strengths | {(0.0, 0.0): "RUDDER is off"}).items():
        assert steered_title(OWN | {"alpha_max": alpha_max, "contrast": contrast}) == words


def test_words_that_differ_are_marked_and_it_is_said() -> None:
    one, other = (traced(text, [0.1] * 5) for text in ("a dog and a cat", "a dog or a cow"))
    views = [token_view(answer, None) for answer in (one, other)]
    assert mark_differences(*views)
    marked = [[token["text"].strip() for token in view["tokens"] if token["differs"]] for view in views]
    assert marked == [["and", "cat"], ["or", "cow"]]
    panels, status = paint(replace(DEFAULT, example=None), Frame(one, other, done=True))
    assert [text.count(" differs") for text in panels] == [2, 2]
    assert all("<summary>Numbers of each token</summary>" in text for text in panels)
    assert "The answers differ in the framed words." in status
    panels, status = paint(DEFAULT, Frame(one, one, done=True))
    assert "Same answer." in status
    assert "differs" not in panels[0]
    assert paint(DEFAULT, Frame(one, other))[1] == paint(DEFAULT, Frame(one, one, True, stopped=True))[1] == ""
    assert paint(DEFAULT, Frame())[0][0].count("Waiting for the model") == 1


def test_examples_are_chosen_by_rules_and_counted() -> None:
    found = Examples(
        [{"dog"}, {"dog"}, {"dog"}, {"dog", "cat"}],
        ["A dog.", "A cat and a cat.", "A dog.", "A cow."],
        ["A dog.", "A dog.", "A cat.", "A cat, a cow, a bear."],
    )
    assert found.absent == [(0, 0), (1, 0), (0, 1), (1, 2)]
    assert found.chosen() == {1: RULES[0], 2: RULES[1], 0: RULES[2]}
    said = "all 4 scenes: vanilla 2 of 4, steered 3 of 6 objects; with RUDDER fewer in 1 scenes, more in 2."
    assert f"{said} Answers that name an object twice: vanilla 1, steered 0." in found.summary()
    assert Examples([{"dog"}], ["A dog."], ["The dog."]).chosen() == {}


# The engine, on the embedded model


@pytest.fixture(scope="module")
def engine() -> Engine:
    model, processor = embedded.load()
    return Engine(model, processor, max_new_tokens=24)


def last(engine: Engine, number: int, view: View) -> Frame:
    *_, frame = engine.stream(example_image(number), view, threading.Event())
    assert (frame.done, frame.stopped) == (True, False)
    return frame


def said(answer: TracedAnswer) -> str:
    return answer.text.strip()


def opening(engine: Engine, number: int, **changes: Any) -> View:
    return with_settings(View(number, serve.PROMPT, engine.own), **changes)


def test_streamed_answers_and_numbers_are_those_of_separate_calls(engine: Engine) -> None:
    view = opening(engine, 3)
    *frames, frame = engine.stream(example_image(3), view, threading.Event())
    assert [each.done for each in (*frames, frame)] == [False] * len(frames) + [True]
    lengths = [len(each.steered.spans) for each in frames]
    assert lengths == sorted(lengths)
    config = engine.model.config
    (answer,) = ask(engine.model, engine.processor, [example_image(3)], view.prompt, 24)
    assert (said(frame.vanilla), said(frame.steered)) == (answer.vanilla, answer.steered)
    for name in ("similarity", "gate", "push"):
        shown = torch.tensor(frame.steered.trace[name])
        assert torch.allclose(shown, torch.tensor(answer.traced.trace[name][: len(shown)]), atol=1e-4), name
    assert set(frame.vanilla.trace["gate"]) == set(frame.vanilla.trace["push"]) == {0.0}
    assert max(frame.steered.trace["gate"]) > 0
    assert (config.layer, config.alpha_max) == (embedded.config().layer, embedded.config().alpha_max)


def test_visitors_at_once_do_not_mix(engine: Engine) -> None:
    """Other images and strengths, all at the same time."""
    strength = engine.own["alpha_max"]
    wanted = [
        (1, opening(engine, 1, contrast=0.6)),
        (5, opening(engine, 5, alpha_max=strength / 2)),
        (9, opening(engine, 9, alpha_max=strength / 8, k=1.0)),
    ]
    alone = [last(engine, number, view) for number, view in wanted]
    together = in_threads([partial(last, engine, *visit) for visit in wanted])
    assert together == alone
    assert len({said(frame.vanilla) for frame in alone}) == len(alone)


def test_a_stopped_answer_is_a_part_of_the_whole_one(engine: Engine) -> None:
    stream = engine.stream(example_image(2), opening(engine, 2), threading.Event())
    next(stream)
    stream.close()  # a reader who leaves: it returns when the generation has ended
    assert not engine._turn.locked()
    view, stop, forwards = opening(engine, 2), threading.Event(), itertools.count(1)
    base = engine.model.handle.backbone.model
    hook = base.register_forward_hook(lambda *_: stop.set() if next(forwards) == 5 else None)
    *_, frame = engine.stream(example_image(2), view, stop)
    hook.remove()
    whole = last(engine, 2, view)
    assert (frame.done, frame.stopped) == (True, True)
    assert whole.steered.text.startswith(frame.steered.text)
    assert len(frame.steered.spans) == 5 < len(whole.steered.spans)
    # Who waits for a turn can stop, too.
    (frame,) = engine.stream(example_image(2), view, stop)
    assert (frame.stopped, said(frame.vanilla)) == (True, "")


def test_errors_reach_the_reader_and_leave_the_model_usable(engine: Engine) -> None:
    with pytest.raises(ValueError, match="`k` is -1"):
        list(engine.stream(example_image(1), opening(engine, 1, k=-1.0), threading.Event()))
    with pytest.raises(ValueError, match="no image"):
        list(engine.stream("no image", opening(engine, 1), threading.Event()))  # type: ignore[arg-type]
    assert engine.model.config.layer == embedded.config().layer
    assert said(last(engine, 1, opening(engine, 1)).steered)


def test_examples_are_recognised_by_their_pixels(tmp_path: Path) -> None:
    files = write_examples(tmp_path)
    assert [recognise_example(Image.open(file)) for file in files] == list(range(1, 13))
    for number, scene in enumerate(embedded.examples(), start=1):
        assert recognise_example(example_image(number).convert("RGBA")) == number
        assert recognise_example(embedded.draw(scene)) == number
    assert recognise_example(example_image(1).rotate(90)) is None


# The command


def test_without_gradio_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(rudder("demo"), "pip install 'rudder-hf[demo]'")


def test_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rudder_hf.cli.common.require_extra", lambda *extra: None)
    with socket.socket() as taken:
        taken.bind((serve.HERE, 0))
        taken.listen()
        refused(rudder("demo", "--port", taken.getsockname()[1]), "is not free")
    refused(rudder("demo", "--port", 0, "--model", tmp_path / "none"), "none")


def test_only_the_page_needs_gradio() -> None:
    for path in Path(serve.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert ("gradio" in names) == (path.stem == "page"), path.name


def test_other_host_names_and_other_pages_are_refused() -> None:
    """A site that has its own name lead to this server, or a page that posts to it, gets nothing."""
    model, processor = embedded.load()
    with serve.serving(model, processor, "embedded", port=0, max_new_tokens=4) as url:
        port = urlsplit(url).port

        def status(method: str, path: str, **headers: str) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            body = "{}" if method == "POST" else None
            connection.request(method, path, body, {"Content-Type": "application/json", **headers})
            return connection.getresponse().status

        assert status("GET", "/") == status("GET", "/", Host=f"localhost:{port}") == 200
        for name in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
            assert status("GET", "/", Host=name) == 403
        join = "/gradio_api/queue/join"
        for origin in ("https://evil.example", "null", "http://127.0.0.1.evil.example"):
            assert status("POST", join, Origin=origin) == 403
        assert status("POST", join, Origin=f"http://127.0.0.1:{port}") != 403
        assert status("POST", join) != 403
