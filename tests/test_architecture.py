"""The shape of the package: imports point one way, remote code stays loadable as such, files stay short."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_imports, get_relative_imports

PACKAGE = Path(__file__).parent.parent / "rudder_hf"
REMOTE = sorted(PACKAGE.glob("*_rudder.py"))
# Each file imports only from files before it.
ORDER = [
    "version_rudder",
    "trust_rudder",
    "warnings_rudder",
    "steering_rudder",
    "configuration_rudder",
    "backbones_rudder",
    "presets_rudder",
    "cardtext_rudder",
    "card_rudder",
    "settings_rudder",
    "trace_rudder",
    "state_rudder",
    "hooks_rudder",
    "request_rudder",
    "generation_rudder",
    "loop_rudder",
    "attach_rudder",
    "custom_generate_rudder",
    "base_rudder",
    "inplace_rudder",
    "processing_rudder",
    "pipeline_rudder",
    "sharing_rudder",
    "modeling_rudder",
]


# Within the package of decoding methods too, below the entry point that imports them all.
METHOD_ORDER = [
    *("base", "randomness", "branches", "pictures", "runs", "attention", "rotation", "vanilla", "vcd", "dola", "pai"),
    *("vista", "vti", "opera_attention", "opera_beams", "opera_search", "opera"),
    *("rudder", "controls", "negated_card", "random_direction", "shuffled_card", "text_only_card"),
    "__init__",
]


# And within the plugin for vLLM.
VLLM_ORDER = [
    *("settings", "planning", "blocks", "buffers", "operator", "layers", "requests", "scheduler", "engine"),
    *("runner", "worker", "cpu_worker", "gpu_worker", "__init__"),
]


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1}


def test_the_order_is_complete() -> None:
    assert sorted(ORDER) == [path.stem for path in REMOTE]


@pytest.mark.parametrize("path", REMOTE, ids=lambda path: path.stem)
def test_imports_point_one_way(path: Path) -> None:
    allowed = set(ORDER[: ORDER.index(path.stem)])
    assert imported(path) <= allowed


def test_imports_of_methods_point_one_way() -> None:
    files = sorted((PACKAGE / "interventions").glob("*.py"))
    assert sorted(METHOD_ORDER) == sorted(path.stem for path in files)
    for path in files:
        # The search names its method's class in annotations only.
        annotated = {"opera"} if path.stem == "opera_search" else set()
        assert imported(path) - annotated <= set(METHOD_ORDER[: METHOD_ORDER.index(path.stem)]), path.stem


def test_imports_of_the_vllm_plugin_point_one_way() -> None:
    files = sorted((PACKAGE / "integrations" / "vllm").glob("*.py"))
    assert sorted(VLLM_ORDER) == sorted(path.stem for path in files)
    for path in files:
        assert imported(path) <= set(VLLM_ORDER[: VLLM_ORDER.index(path.stem)]), path.stem


@pytest.mark.parametrize("path", REMOTE, ids=lambda path: path.stem)
def test_files_can_be_remote_code(path: Path) -> None:
    """transformers finds imports by regular expression, in docstrings too, and checks that packages are installed."""
    assert set(get_relative_imports(path)) == imported(path)
    packages = set(get_imports(path)) - sys.stdlib_module_names
    assert packages <= {"torch", "transformers", "huggingface_hub", "safetensors"}
    assert not re.search(r"^\s*from \. import|^\s*from \.\.", path.read_text(), re.MULTILINE)


# The same for the metrics: pure functions that need neither a model nor the runner.
METRICS = [
    "errors", "statistics", "resources", "words", "lineages", "places", "coco", "chair", "pope", "pope_questions",
    "mme", "fluency",
]  # fmt: skip


@pytest.mark.parametrize("name", METRICS)
def test_metrics_need_no_model(name: str) -> None:
    path = PACKAGE / "evaluation" / f"{name}.py"
    assert imported(path) <= set(METRICS[: METRICS.index(name)])
    assert not {"torch", "transformers", "nltk"} & set(
        re.findall(r"^(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
    )


# The page of `rudder demo`: what it shows is made by functions that know neither the model nor gradio.
DEMO_ORDER = ["__init__", "tokens", "look", "view", "pictures", "engine", "page", "serve"]


def test_imports_of_the_demo_point_one_way() -> None:
    files = sorted((PACKAGE / "demo").glob("*.py"))
    assert sorted(DEMO_ORDER) == sorted(path.stem for path in files)
    for path in files:
        assert imported(path) - {""} <= set(DEMO_ORDER[: DEMO_ORDER.index(path.stem)]), path.stem
        heavy = set(re.findall(r"^(?:import|from) (torch|gradio)", path.read_text(), re.MULTILINE))
        assert heavy <= {"engine": {"torch"}, "page": {"gradio"}}.get(path.stem, set()), path.stem


# Numbers first, then words and figures about them, then the command that makes both.
ANALYSIS_ORDER = [
    "extras", "geometry", "ranks", "clusters", "evidence", "embedding", "tokens", "detector", "dynamics", "ablations",
    "gathering", "store", "numbers", "texts", "drawing", "page", "report", "run", "__init__",
]  # fmt: skip


def test_imports_of_the_analysis_point_one_way() -> None:
    folder = PACKAGE / "analysis"
    assert {path.stem for path in folder.glob("*.py")} | {"drawing"} == set(ANALYSIS_ORDER)
    for path in folder.glob("*.py"):
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                found |= {node.module.split(".")[0]} if node.module else {name.name for name in node.names}
        assert found <= set(ANALYSIS_ORDER[: ANALYSIS_ORDER.index(path.stem)]), path.stem


def test_numbers_of_the_analysis_and_figures_are_apart() -> None:
    folder = PACKAGE / "analysis"
    for path in folder.glob("*.py"):
        assert not re.search(r"^\s*(?:import|from) matplotlib", path.read_text(), re.MULTILINE), path.name
    for path in (folder / "drawing").glob("*.py"):
        text = path.read_text()
        assert not re.search(r"^\s*(?:import|from) (?:torch|transformers|sklearn)", text, re.MULTILINE), path.name
        assert not re.search(r"^\s*from \.\.\w", text, re.MULTILINE), path.name  # of the package's numbers


def test_scenes_know_nothing_of_evaluation() -> None:
    for path in (PACKAGE / "scenes").glob("*.py"):
        assert not re.search(r"^\s*(?:from|import) .*\bevaluation\b", path.read_text(), re.MULTILINE), path.name


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_are_short_and_documented(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert len(path.read_text().splitlines()) <= 330
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno <= 75, f"{node.name} is long"


def test_nothing_is_patched_at_import() -> None:
    """Importing the package leaves transformers and torch as they were."""

    code = """
import torch, transformers, transformers.generation.utils as g
def snapshot():
    classes = (g.GenerationMixin, transformers.PreTrainedModel, torch.nn.Module)
    return {id(value): name for cls in classes for name, value in vars(cls).items()}
before = snapshot()
import rudder_hf.modeling_rudder, rudder_hf.attach_rudder, rudder_hf.cli.main, rudder_hf.benchmark
import rudder_hf.interventions
assert snapshot() == before
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)
