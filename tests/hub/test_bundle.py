"""The joined files of a settings repository: plain joins of the package's modules that need nothing else."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_imports, get_relative_imports

import rudder_hf
from rudder_hf.hub.bundle import MODULES, custom_generate_source, modeling_source

PACKAGE = Path(rudder_hf.__file__).parent


def body(module: str) -> list[ast.stmt]:
    return ast.parse((PACKAGE / module).read_text()).body


def defined(module: str) -> list[str]:
    """Names that a module defines at its top."""
    names: list[str] = []
    for node in body(module):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def test_no_name_is_defined_twice() -> None:
    """In one file the second definition would silently replace the first."""
    counts = Counter(name for module in MODULES for name in defined(module))
    assert [name for name, count in counts.items() if count > 1] == []


def test_all_of_core_is_in_it() -> None:
    core = {f"core/{path.name}" for path in (PACKAGE / "core").glob("*.py") if path.name != "__init__.py"}
    assert core <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_modules_import_what_stands_before_them(module: str) -> None:
    before = [name.removesuffix(".py").replace("/", ".") for name in MODULES[: MODULES.index(module)]]
    folder = module.split("/")[:-1]
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assert node in body(module) or ast.dump(node) in map(ast.dump, body(module)), "imports stand at the top"
            assert all(alias.asname is None for alias in node.names), "a joined file knows things by one name"
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - node.level + 1]
            assert ".".join([*base, str(node.module)]) in before


def test_the_files_need_only_what_transformers_needs(tmp_path: Path) -> None:
    """transformers looks for imports by regular expression, in docstrings and templates too."""
    for name, source in (("modeling_rudder.py", modeling_source()), ("generate.py", custom_generate_source({"k": 1}))):
        path = tmp_path / name
        path.write_text(source)
        assert get_relative_imports(path) == []
        packages = {package.split(".")[0] for package in get_imports(path)} - sys.stdlib_module_names
        # PIL comes with every image processor.
        assert packages <= {"torch", "transformers", "huggingface_hub", "safetensors", "numpy", "PIL"}


def test_the_files_read_well() -> None:
    source = modeling_source()
    assert source.startswith('"""RUDDER for transformers')
    assert source.splitlines().count("from __future__ import annotations") == 1
    # Lines of the modules, docstrings as comments, and pragmas that formatters let stand out.
    assert max(len(line.split("  # type:")[0]) for line in source.splitlines()) <= 121
    assert [line for line in source.splitlines() if line.startswith("# ======== ")] == [
        f"# ======== rudder_hf/{module}" for module in MODULES
    ]
    # Public names keep their docstrings.
    module = ast.parse(source)
    public = [n for n in module.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")]
    assert len(public) > 50
    assert [node.name for node in public if not ast.get_docstring(node)] == []
