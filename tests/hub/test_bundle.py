"""The joined files of a settings repository: plain joins of the package's modules that need nothing else."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest
from transformers.dynamic_module_utils import get_imports, get_relative_imports

import rudder_hf
from rudder_hf.hub.bundle import custom_generate_source, joined_modules, modeling_source, pipeline_source

PACKAGE = Path(rudder_hf.__file__).parent
MODULES = joined_modules(("hub/modeling.py",))
FILES = {"modeling_rudder.py": modeling_source, "pipeline_rudder.py": pipeline_source,
         "generate.py": lambda: custom_generate_source({"k": 1})}  # fmt: skip


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


def test_the_method_comes_first_and_hardening_last() -> None:
    """Whoever is asked for trust reads the equations before the plumbing."""
    wanted = [f"core/{name}.py" for name in ("steering", "state", "hooks", "generate", "handle")]
    assert [name for name in MODULES if name in (*wanted, "hub/modeling.py")] == [*wanted, "hub/modeling.py"]
    assert MODULES[-2:] == ["core/trust.py", "core/families.py"]
    assert "(Eq. 2)" in "\n".join(modeling_source().splitlines()[:150])


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_sent_to_the_hub(name: str) -> None:
    """A file that is trusted to caption an image cannot change a repository with the user's token."""
    source = FILES[name]()
    for word in ("HfApi", "create_commit", "CommitOperation", "create_repo", "upload_", "delete_"):
        assert word not in source.replace("delete_adapter", ""), word
    names = {node.module: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert not [module for module in names if str(module).startswith("rudder_hf")]


@pytest.mark.parametrize("module", MODULES)
def test_imports_stand_at_the_top(module: str) -> None:
    for node in ast.walk(ast.parse((PACKAGE / module).read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assert ast.dump(node) in map(ast.dump, body(module))
            assert all(alias.asname is None for alias in node.names), "a joined file knows things by one name"


def test_the_files_need_only_what_transformers_needs(tmp_path: Path) -> None:
    """transformers looks for imports by regular expression, in docstrings and templates too."""
    for name, source in FILES.items():
        path = tmp_path / name
        path.write_text(source())
        assert get_relative_imports(path) == []
        packages = {package.split(".")[0] for package in get_imports(path)} - sys.stdlib_module_names
        # PIL comes with every image processor.
        assert packages <= {"torch", "transformers", "huggingface_hub", "PIL"}


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
