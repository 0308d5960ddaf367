"""What the tests of sharing use together: a tiny model, settings for it, a Hub that has both, and another machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub import Elsewhere, LocalHub
from tests.support.repos import make_base, make_settings, picture


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="session")
def base(home: Path) -> Path:
    """A folder with a tiny LLaVA."""
    return make_base(home / "base")


@pytest.fixture(scope="session")
def repo(home: Path, base: Path) -> Path:
    """A folder with settings for it."""
    return make_settings(home / "settings", base)


@pytest.fixture(scope="session")
def hub(home: Path, base: Path) -> Iterator[LocalHub]:
    """A Hub with a base model, and settings for it that were pushed."""
    with LocalHub(home / "content") as hub:
        commit = hub.store.add("org/base", base)
        hub.store.add("org/steered", make_settings(home / "steered", "org/base", base_model_revision=commit.sha))
        yield hub


@pytest.fixture(scope="session")
def elsewhere(home: Path, hub: LocalHub) -> Iterator[Elsewhere]:
    """A machine on which `rudder_hf` is not installed."""
    if not hasattr(os, "fork"):
        pytest.skip("the processes are forked")
    with Elsewhere(home / "home", hub.url) as process:
        picture().save(process.work / "picture.png")
        yield process
