"""The process of the tests: folders of its own, settings that stand before torch is imported, and what is slow.

`python -m pytest` runs the quick tests, which touch every module and the families of `QUICK_FAMILIES`;
`python -m pytest -m ""` runs everything.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest

# oneDNN picks its kernels by what the processor claims; on virtual machines without working AMX the bfloat16 ones die.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
# The models are tiny: a second thread within an operator costs more than it saves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Caches of this run alone: another run, or the user's own, is neither read nor written to. Workers share the folder
# of the process that started them, but not what compilers write.
_HOME = "RUDDER_TESTS_HOME"
if _HOME not in os.environ:
    os.environ[_HOME] = tempfile.mkdtemp(prefix="rudder-tests-")
    atexit.register(shutil.rmtree, os.environ[_HOME], ignore_errors=True)
_home = Path(os.environ[_HOME])
os.environ["HF_HOME"] = str(_home / "huggingface")
os.environ["HF_MODULES_CACHE"] = str(_home / "modules")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_home / f"inductor-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}")
for _name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE"):
    os.environ.pop(_name, None)

QUICK_FAMILIES = frozenset(
    ("llava", "idefics2", "instructblip", "qwen2_5_vl", "gemma3", "blip-2", "granite4_vision", "mllama", "chameleon")
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LLaVA with random weights and its processor on disk, without settings."""
    from tests.support.evaluating import loaded

    folder = tmp_path_factory.mktemp("model")
    loaded().model.save_pretrained(folder)
    loaded().processor.save_pretrained(folder)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one family are slow unless it is one of the quick ones: there are seventy, and they are alike."""
    from tests.support.zoo import FAMILIES

    for item in items:
        callspec = getattr(item, "callspec", None)
        families = {value for value in (callspec.params.values() if callspec else ()) if isinstance(value, str)}
        if any(name not in QUICK_FAMILIES for name in families & set(FAMILIES)):
            item.add_marker(pytest.mark.slow)
