"""The shape of the package: imports point one way, by folder, and light parts stay light."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rudder_hf

PACKAGE = Path(rudder_hf.__file__).parent
# A folder imports from the lines above its own, and from its own line.
ORDER = (
    ("core",),
    ("presets",),
    ("hub", "methods"),
    ("runtime", "metrics", "scenes"),
    ("evaluate",),
    ("benchmark", "calibrate"),
    ("compare", "analyze"),
    ("integrations", "demo"),
    ("cli",),
)
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}


def imported_folders(path: Path) -> set[str]:
    """First parts of what a file imports from the package, wherever in the file."""
    module = ["rudder_hf", *path.relative_to(PACKAGE).with_suffix("").parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            target = module[: len(module) - node.level] + (node.module.split(".") if node.module else [])
            names = [target[1]] if len(target) > 1 else [alias.name for alias in node.names]
            found |= {name for name in names if name in RANK}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rudder_hf."):
            found.add(str(node.module).split(".")[1])
    return found


def test_imports_point_one_way() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if folder in RANK:
            wrong += [
                f"{path.relative_to(PACKAGE)} imports {name}"
                for name in imported_folders(path)
                if RANK[name] > RANK[folder]
            ]
    assert wrong == []


def test_every_folder_has_its_place() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders == set(RANK) - {"presets"}


def test_metrics_need_no_model() -> None:
    for path in (PACKAGE / "metrics").glob("*.py"):
        imports = set(re.findall(r"^(?:import|from) (\w+)", path.read_text(), re.MULTILINE))
        assert not imports & {"torch", "transformers", "nltk"}, path.name


@pytest.mark.slow
def test_nothing_is_patched_at_import() -> None:
    """Importing the package leaves transformers and torch as they were."""
    code = """
import torch, transformers, transformers.generation.utils as g
def snapshot():
    classes = (g.GenerationMixin, transformers.PreTrainedModel, torch.nn.Module)
    return {id(value): name for cls in classes for name, value in vars(cls).items()}
before = snapshot()
import rudder_hf.hub.modeling, rudder_hf.core.handle, rudder_hf.cli.main, rudder_hf.benchmark
import rudder_hf.methods
assert snapshot() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


@pytest.mark.slow
def test_a_script_called_rudder_registers_too(tmp_path: Path) -> None:
    script = tmp_path / "rudder.py"
    script.write_text("import rudder_hf\nfrom transformers import AutoConfig\nAutoConfig.for_model('rudder', layer=3)")
    path = {"PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run([sys.executable, str(script)], check=True, env={**os.environ, **path})
