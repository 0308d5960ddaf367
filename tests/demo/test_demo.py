"""The demo without a browser: what the page shows, what a link means, what visitors get."""

from __future__ import annotations

import ast
import base64
import html
import json
import math
import re
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rudder_hf import RudderConfig
from rudder_hf.cli.main import app
from rudder_hf.demo import pictures, serve
from rudder_hf.demo.engine import Engine, Frame
from rudder_hf.demo.tokens import (
    COLOURS,
    Pieces,
    Token,
    caption,
    contrast,
    legend,
    luminance,
    scale,
    shade,
    verdict,
)
from rudder_hf.demo.view import (
    LONGEST_PROMPT,
    Limits,
    View,
    config_json,
    default_view,
    keep_links,
    read_query,
    strength_note,
    view_of,
)
from rudder_hf.metrics.highlight import Span
from rudder_hf.scenes import embedded

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
LIMITS = Limits({0: 1.4, 1: 220.5, 3: 41.0}, examples=12, settings=(3, 12.5, 5.0))
DEFAULT = default_view(LIMITS, "beta", "what is this", 2)
texts = st.text(max_size=12)
numbers = st.floats(-1, 1, allow_nan=False)
tokens = st.lists(st.builds(Token, texts, numbers, numbers.map(abs), numbers.map(abs)), max_size=8)


class Read(HTMLParser):
    """Reads HTML as a browser would: text, what is struck out, tips, and tags that are open."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.struck, self.tips, self.tags, self.open = "", "", [], set(), []  # type: ignore[var-annotated]
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        self.tips += [value for name, value in attrs if name == "data-tip"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        self.struck += data if "del" in self.open else ""


@given(tokens, st.sampled_from(COLOURS), st.data())
def test_captions_show_the_text_and_strike_out_exactly_the_spans(
    answer: list[Token], colour: str, data: st.DataObject
) -> None:
    whole = "".join(token.text for token in answer)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    page = caption(answer, colour, scale([answer], colour), [Span(start, stop, "cup")])
    read = Read(page)
    assert read.open == []
    assert read.tags <= {"span", "del"}
    # Browsers take carriage returns and NUL for something else; blanks before the first word are dropped.
    skipped = len(whole) - len(whole.lstrip())
    assert read.text == html.unescape(html.escape(whole.lstrip()))
    assert read.struck == html.unescape(html.escape(whole[max(start, skipped) : max(stop, skipped)]))
    assert not re.search(r"\{\{|\$\{|`", page)  # nothing for a template to evaluate
    assert len(read.tips) >= sum(bool(token.text.strip()) for token in answer)


def test_tokens_carry_their_numbers_and_hostile_text_stays_text() -> None:
    hostile = '<img src=x onerror="alert(1)"> {{constructor}} ${alert(1)}'
    page = caption([Token(hostile, 0.25, 0.5, 0.125)], "gate", (0.0, 1.0))
    read = Read(page)
    assert read.text == hostile
    assert read.tags == {"span"}
    assert read.tips == ["gate 0.500 · similarity +0.250 · push 12.5 %"]
    assert "<img" not in verdict([Span(0, 1, "<img>")], True)
    assert "not recorded" in caption([Token("a", math.nan, math.nan, math.nan)], "gate", (0.0, 1.0))


@given(st.floats(0, 1), st.floats(0, 1))
def test_colours_darken_with_the_value_and_stay_readable(one: float, other: float) -> None:
    (low, ink), (high, _) = shade(min(one, other)), shade(max(one, other))
    assert luminance(low) >= luminance(high)
    assert contrast(low, ink) >= 4.5
    if abs(one - other) > 0.1:
        assert luminance(low) > luminance(high) + 0.005  # told apart in greyscale


def test_colours_outside_of_the_scale_are_its_ends() -> None:
    assert shade(-3.0) == shade(0.0) == shade(math.nan)
    assert shade(7.0) == shade(1.0)
    assert luminance((0, 0, 0)) == 0
    assert luminance((255, 255, 255)) == pytest.approx(1)
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)


@given(st.lists(tokens, max_size=3))
def test_one_scale_covers_all_answers(answers: list[list[Token]]) -> None:
    assert scale(answers, "gate") == (0.0, 1.0)
    low, high = scale(answers, "similarity")
    assert low < high
    assert all(low <= token.similarity <= high for answer in answers for token in answer)
    assert f">{low:g}<" in legend("similarity", (low, high))


@given(st.lists(st.integers(0, 255), max_size=12))
def test_pieces_join_to_the_decoded_text(ids: list[int]) -> None:
    """Bytes as tokens: the hardest case, where most prefixes are no text."""

    def decode(tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", errors="replace")

    pieces = Pieces(decode)
    for count, token in enumerate(ids, start=1):
        pieces.add(token)
        assert len(pieces.texts()) == count
        assert "".join(pieces.texts()) == decode(ids[:count])


def test_a_character_of_several_tokens_belongs_to_the_last() -> None:
    pieces = Pieces(lambda tokens: bytes(tokens).decode("utf-8", errors="replace"))
    for token in "aé!".encode():
        pieces.add(token)
    assert pieces.texts() == ["a", "", "é", "!"]


views = st.builds(
    View,
    example=st.one_of(st.none(), st.integers(1, 12)),
    prompt=st.text(min_size=1, max_size=30).filter(lambda text: text.strip()),
    mode=st.sampled_from(["beta", "add"]),
    layer=st.sampled_from([0, 1, 3]),
    alpha_max=st.floats(0, 1.4),
    k=st.floats(0, 20),
    colour=st.sampled_from(COLOURS),
)


@given(views)
def test_a_link_reproduces_the_view(view: View) -> None:
    start = replace(DEFAULT, example=None)
    assert read_query(dict(parse_qsl(view.query(), keep_blank_values=True)), start, LIMITS) == (view, [])


NAMES = ("example", "prompt", "mode", "layer", "alpha_max", "k", "colour", "__theme")


@given(st.dictionaries(st.sampled_from(NAMES), st.one_of(st.text(max_size=8), st.floats().map(str))))
def test_whatever_a_link_says_the_view_is_possible(query: dict[str, str]) -> None:
    view, notes = read_query(query, DEFAULT, LIMITS)
    LIMITS.check(view)
    assert all(any(name in note for name in query) for note in notes)


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ({"layer": "2"}, "one of 0, 1, 3"),
        ({"layer": "x"}, "no number"),
        ({"example": "13"}, "1 to 12"),
        ({"alpha_max": "nan"}, "0 to 41"),
        ({"k": "1e9"}, "0 to 20"),
        ({"mode": "gamma"}, "'beta'"),
        ({"colour": "red"}, "gate, similarity"),
        ({"prompt": "a" * (LONGEST_PROMPT + 1)}, str(LONGEST_PROMPT)),
        ({"example": "9" * 5000}, "no number"),
    ],
)
def test_what_a_link_cannot_have_is_told(query: dict[str, str], word: str) -> None:
    view, notes = read_query(query, DEFAULT, LIMITS)
    assert view == DEFAULT
    assert len(notes) == 1
    assert word in notes[0]
    assert len(notes[0]) < 300


def test_strengths_fit_the_layer() -> None:
    assert [LIMITS.largest_alpha(layer) for layer in (0, 1, 3)] == [1.4, 230.0, 41.0]
    assert [LIMITS.alpha_step(layer) for layer in (0, 1, 3)] == [0.001, 0.1, 0.01]
    strong = Limits({0: 2.0}, 12, (0, 50.0, 30.0))
    assert strong.largest_alpha(0) >= 50
    assert strong.largest_k == 30
    view, notes = read_query({"layer": "0"}, DEFAULT, LIMITS)  # the strength of layer 3 does not fit
    assert (view.layer, view.alpha_max, notes) == (0, 1.4, [])
    assert "30 %" in strength_note(replace(DEFAULT, alpha_max=12.3), LIMITS)
    assert "one of 0, 1, 3" in strength_note(replace(DEFAULT, layer=2), LIMITS)


def test_emptied_controls_are_refused() -> None:
    values: dict[str, Any] = {"prompt": "p", "mode": "beta", "layer": 3.0, "alpha_max": 1, "k": 2, "colour": "gate"}
    assert view_of(values, None) == View(None, "p", "beta", 3, 1.0, 2.0)
    with pytest.raises(ValueError, match="alpha_max is empty"):
        view_of(values | {"alpha_max": None}, None)


def saved(page: str, folder: Path) -> RudderConfig:
    """The config that a click on the page's button saves."""
    found = re.search(r'download="config.json" href="data:application/json;base64,([^"]+)"', page)
    assert found is not None
    folder.mkdir()
    (folder / "config.json").write_bytes(base64.b64decode(found.group(1)))
    return RudderConfig.from_pretrained(folder)  # type: ignore[no-any-return]


def test_saved_settings_are_read_by_the_config_class(tmp_path: Path) -> None:
    config = RudderConfig(
        base_model_name_or_path="org/base", base_model_revision="a" * 40, calibration={"source": "here"},
        layer=3, g_min=0.2, span="text", norm_cap=7.0, steer_first_token=True,
    )  # fmt: skip
    view = replace(DEFAULT, mode="add", layer=1, alpha_max=9.25, k=1.5)
    again = saved(keep_links(view, config_json(view, config, keep_folder=False)), tmp_path / "saved")
    assert (again.mode, again.layer, again.alpha_max, again.k) == ("add", 1, 9.25, 1.5)
    kept = ("g_min", "span", "norm_cap", "steer_first_token", "calibration", "base_model_name_or_path")
    assert [getattr(again, name) for name in kept] == [getattr(config, name) for name in kept]
    assert (config.layer, config.alpha_max) == (3, 20.0)  # as it was


def test_a_public_page_tells_no_folder(tmp_path: Path) -> None:
    config = RudderConfig(base_model_name_or_path=str(tmp_path), layer=3)
    assert str(tmp_path) not in config_json(DEFAULT, config, keep_folder=False)
    assert json.loads(config_json(DEFAULT, config, keep_folder=True))["base_model_name_or_path"] == str(tmp_path)


# The engine, on the embedded model


@pytest.fixture(scope="module")
def engine() -> Engine:
    model, processor = embedded.load()
    return Engine(model, processor, serve.PROMPT, max_new_tokens=24)


def last(engine: Engine, number: int, view: View) -> Frame:
    *_, frame = engine.stream(pictures.example(number), view)
    assert frame.done
    return frame


def said(answer: tuple[Token, ...]) -> str:
    return "".join(token.text for token in answer).strip()


def opening(engine: Engine, number: int, **changes: Any) -> View:
    view = default_view(engine.limits, engine.model.config.mode, serve.PROMPT, number)
    return replace(view, **changes)


def test_streamed_answers_and_numbers_are_those_of_separate_calls(engine: Engine) -> None:
    from rudder_hf.cli.ask import ask

    view = opening(engine, 3)
    frame = last(engine, 3, view)
    config = engine.model.config
    (answer,) = ask(engine.model, engine.processor, [pictures.example(3)], view.prompt, 24)
    assert (said(frame.vanilla), said(frame.steered)) == (answer.vanilla, answer.steered)
    count = len(frame.steered)
    for name in ("similarity", "gate", "push"):
        shown = torch.tensor([getattr(token, name) for token in frame.steered])
        assert torch.allclose(shown, torch.tensor(getattr(answer, name)[:count]), atol=1e-4), name
    assert all(token.gate == 0 and token.push == 0 for token in frame.vanilla)
    assert any(token.gate > 0 for token in frame.steered)
    assert (config.layer, config.alpha_max) == (embedded.config().layer, embedded.config().alpha_max)


def test_frames_grow(engine: Engine) -> None:
    frames = list(engine.stream(pictures.example(1), opening(engine, 1)))
    lengths = [len(frame.steered) for frame in frames]
    assert lengths == sorted(lengths)
    assert [frame.done for frame in frames] == [False] * (len(frames) - 1) + [True]


def test_visitors_at_once_do_not_mix(engine: Engine) -> None:
    """Other pictures, layers, modes and strengths, all at the same time."""
    norms = engine.limits.hidden_norms
    layers = sorted(norms)
    wanted = [
        (1, opening(engine, 1)),
        (5, opening(engine, 5, layer=layers[-1], alpha_max=engine.limits.largest_alpha(layers[-1]) / 2)),
        (9, opening(engine, 9, layer=layers[1], alpha_max=engine.limits.largest_alpha(layers[1]) / 2, mode="add")),
    ]
    alone = [last(engine, number, view) for number, view in wanted]
    together: list[Frame | None] = [None] * len(wanted)

    def visit(place: int) -> None:
        together[place] = last(engine, *wanted[place])

    visitors = [threading.Thread(target=visit, args=(place,)) for place in range(len(wanted))]
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    assert together == alone
    assert len({said(frame.vanilla) for frame in alone}) == len(alone)


def test_a_reader_who_leaves_ends_the_generation(engine: Engine) -> None:
    stream = engine.stream(pictures.example(2), opening(engine, 2))
    next(stream)
    stream.close()  # returns when the generation has ended
    assert not engine._turn.locked()
    assert said(last(engine, 2, opening(engine, 2)).vanilla)


def test_errors_reach_the_reader_and_leave_the_model_usable(engine: Engine) -> None:
    with pytest.raises(ValueError, match="layer is 99"):
        next(engine.stream(pictures.example(1), opening(engine, 1, layer=99)))
    with pytest.raises(ValueError, match="no picture"):
        list(engine.stream("no picture", opening(engine, 1)))  # type: ignore[arg-type]
    assert engine.model.config.layer == embedded.config().layer
    assert said(last(engine, 1, opening(engine, 1)).steered)


def test_examples_are_recognised_by_their_pixels(tmp_path: Path) -> None:
    files = pictures.write(tmp_path)
    assert [file.name for file in files] == [file.name for file in sorted((EXAMPLES / "images").glob("*.png"))]
    for number, scene in enumerate(embedded.examples(), start=1):
        assert pictures.recognise(pictures.example(number).convert("RGBA")) == number
        assert pictures.recognise(embedded.draw(scene)) == number
        assert pictures.present(number) == frozenset(scene.names)
    assert pictures.recognise(pictures.example(1).rotate(90)) is None
    assert pictures.present(None) is None


# The command


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["demo", *map(str, arguments)])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


def test_without_gradio_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'rudder-hf[demo]'" in refused()


def test_bad_input_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(serve, "check_gradio", lambda: None)
    import socket

    with socket.socket() as taken:
        taken.bind((serve.HERE, 0))
        taken.listen()
        assert "is not free" in refused("--port", taken.getsockname()[1])
    assert "none" in refused("--port", 0, "--model", tmp_path / "none")


def test_only_the_page_needs_gradio() -> None:
    for path in Path(serve.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert ("gradio" in names) == (path.stem == "page"), path.name


def test_the_space_starts_this_page() -> None:
    space = EXAMPLES / "space"
    front = (space / "README.md").read_text().split("---")[1]
    assert "sdk: gradio" in front
    assert "app_file: app.py" in front
    assert (space / "requirements.txt").read_text().strip() == "rudder-hf[demo]"
    code = (space / "app.py").read_text()
    compile(code, "app.py", "exec")
    assert "on_space=True" in code


settings.register_profile("demo", deadline=None)
settings.load_profile("demo")
