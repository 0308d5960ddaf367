"""The methods of a run: names and groups from the command line, methods that cannot run, caption pairs for VTI."""

from __future__ import annotations

import pytest

from rudder_hf.evaluate.methods import caption_pair, make_methods, parse_names, parse_optional, parse_settings
from rudder_hf.methods import GROUPS, NAMES
from rudder_hf.runtime.models import load_model
from rudder_hf.scenes.captions import broken_sentences, named_categories
from rudder_hf.scenes.images import train_scene
from tests.support.evaluating import loaded


def test_groups_are_replaced_by_their_members() -> None:
    assert parse_names("all") == list(NAMES)
    assert parse_names("vcd,peers")[0] == "vcd"
    assert set(parse_names("vanilla, rudder,contrast,peers,controls")) == set(NAMES)
    assert parse_optional("vcd,peers") == set(GROUPS["peers"]) - {"vcd"}
    assert parse_optional("vcd,pai") == set()
    assert parse_names("dola") == ["dola"]
    for typed, meant in (("dolla", "dola"), ("rudder-bta", "rudder-beta"), ("Peer", "peers"), ("VCD", "vcd")):
        with pytest.raises(ValueError, match=f"no method '{typed}'. Did you mean '{meant}'?"):
            parse_names(typed)
    for wrong in ("", "everything", "vcd,vcd", "all,all"):
        with pytest.raises(ValueError, match="method"):
            parse_names(wrong)


def test_settings_are_written_as_in_json_or_in_python() -> None:
    python = ("steer_first_token=True", "norm_cap=None", "rudder-add.steer_first_token= False", "span=text", "k=2")
    json = ("steer_first_token=true", "norm_cap=null", "rudder-add.steer_first_token= false", 'span="text"', "k=2")
    own = {"steer_first_token": True, "norm_cap": None, "span": "text", "k": 2}
    assert parse_settings(python) == parse_settings(json) == {"": own, "rudder-add": {"steer_first_token": False}}


def test_members_that_cannot_run_are_left_out_and_named_ones_refused() -> None:
    made, left_out = make_methods(parse_names("all"), loaded(), optional=parse_optional("all"))
    assert [method.name for method in made] == [n for n in NAMES if n != "vti"]
    assert [note.split(" ")[0] for note in left_out] == ["vti"]
    with pytest.raises(ValueError, match="directions"):
        make_methods(["vanilla", "vti"], loaded())
    with pytest.raises(ValueError, match="settings for 'vcd'"):
        make_methods(["vanilla"], loaded(), {"vcd": {"alpha": 1}})


def test_pairs_for_vti_differ_in_objects_only() -> None:
    for number in range(20):
        scene = train_scene(0, number)
        correct, wrong = caption_pair(scene, number)
        assert set(named_categories(correct)) <= set(scene.names)
        assert not set(named_categories(wrong)) <= set(scene.names)
        assert len(named_categories(correct)) == len(named_categories(wrong))
        assert broken_sentences(correct) == broken_sentences(wrong) == 0


def test_a_model_can_be_named_with_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def read(name: str, revision: str | None = None) -> None:
        asked.append((name, revision))
        raise OSError("no connection")

    monkeypatch.setattr("rudder_hf.runtime.models.read_settings", read)
    for name in ("org/name@v1", "org/name"):
        with pytest.raises(ValueError, match=f"Cannot load '{name}': no connection"):
            load_model(name)
    assert asked == [("org/name", "v1"), ("org/name", None)]
