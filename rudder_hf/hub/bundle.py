"""The two Python files of a settings repository, joined from the modules of this package.

`modeling_rudder.py` holds everything that loads and steers a model, `custom_generate/generate.py` what steers one
call. Both are plain joins: the modules' own text in import order, one section for each, with all imports once at the
top. Joined code can join itself again: it finds the sections in its own file, so that settings which are saved without
rudder_hf installed carry the very same code.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.compat import OLDEST_TRANSFORMERS

# In import order: a module uses only names of those before it.
_CORE = tuple(
    f"core/{name}.py"
    for name in (
        *("version", "compat", "errors", "trust", "steering", "configuration", "families", "backbones", "call"),
        *("trace", "contrast", "state", "hooks", "conversations", "generate", "handle"),
    )
)
_CUSTOM_GENERATE = "hub/custom_generate.py"
_HUB = tuple(
    f"hub/{name}.py"
    for name in ("loading", "images", "processing", "pipeline", "card_text", "card", "bundle", "push", "modeling")
)
MODULES = (*_CORE, "presets.py", _CUSTOM_GENERATE, *_HUB)
"""What `modeling_rudder.py` is joined from."""

_SECTION = "# ======== rudder_hf/"
# Before any other import: an older transformers lacks names that are imported below.
_VERSION_CHECK = f"""import transformers

if [int(part) for part in transformers.__version__.split(".")[:2]] < [{OLDEST_TRANSFORMERS.replace(".", ", ")}]:
    raise ImportError(
        "These RUDDER settings need transformers {OLDEST_TRANSFORMERS} or later, and transformers "
        f"{{transformers.__version__}} is installed: pip install -U 'transformers>={OLDEST_TRANSFORMERS}'"
    )
"""
_WIDTH = 119


@functools.cache
def modeling_source() -> str:
    """The text of `modeling_rudder.py`."""
    intro = "RUDDER for transformers: loads the base model that `config.json` names, and steers its `generate`."
    return _join(intro, MODULES)


def custom_generate_source(settings: Mapping[str, Any]) -> str:
    """The text of `custom_generate/generate.py`, with the settings in it: transformers hands it no config."""
    values = "".join(f"    {name!r}: {value!r},\n" for name, value in settings.items())
    intro = "RUDDER for one call of a stock model: `model.generate(..., custom_generate=THIS_REPOSITORY)`."
    return (
        _join(intro, (*_CORE, _CUSTOM_GENERATE))
        + f"\n\n{_SECTION}the settings of this repository\n\nSETTINGS = {{\n{values}}}\n\n\n"
        + "def generate(model, **kwargs):\n"
        + '    """The model\'s own `generate`, steered; takes `rudder=` and `output_rudder=` too."""\n'
        + "    return generate_steered(model, SETTINGS, **kwargs)\n"
    )


@functools.cache
def _join(intro: str, modules: tuple[str, ...]) -> str:
    """The sections of some modules under one header, with those imports that they use."""
    imports, sections = _own_parts() if Path(__file__).name != "bundle.py" else _package_parts()
    chosen = [f"{_SECTION}{name}\n\n{sections[name]}" for name in modules]
    used = {node.id for node in ast.walk(ast.parse("\n".join(chosen))) if isinstance(node, ast.Name)}
    header = f'''"""{intro}

Joined from the modules of the Python package rudder_hf, one section for each, when this repository was written. Change
the package, not this file. Needs the standard library, torch and transformers.
"""
'''
    lines = _import_lines([each for each in imports if each[-1].split(".")[0] in used])
    top = [header, "from __future__ import annotations", "", _VERSION_CHECK, *lines]
    return "\n".join(top) + "\n\n" + "\n\n".join(chosen)


def _package_parts() -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """Imports and sections, from the package's files."""
    imports: set[tuple[str, ...]] = set()
    sections = {}
    for name in MODULES:
        source = (Path(__file__).parents[1] / name).read_text(encoding="utf-8")
        module = ast.parse(source)
        imports |= _imports(module.body)
        # The docstring and all imports stand together at the top of each module.
        top = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom)) or node.lineno == 1]
        rest = "".join(source.splitlines(keepends=True)[top[-1].end_lineno :])
        about = "\n".join(f"# {line}".rstrip() for line in (ast.get_docstring(module) or "").splitlines())
        sections[name] = f"{about}\n\n{rest.strip()}\n"
    return sorted(imports), sections


def _own_parts() -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """Imports and sections, from the joined file that this code stands in."""
    header, *parts = Path(__file__).read_text(encoding="utf-8").split(f"\n{_SECTION}")
    sections = dict(part.split("\n\n", 1) for part in parts)
    return sorted(_imports(ast.parse(header).body)), {name: text.strip() + "\n" for name, text in sections.items()}


def _imports(body: list[ast.stmt]) -> set[tuple[str, ...]]:
    """Absolute imports as (module,) or (module, name). Modules of the package are in the file already."""
    found: set[tuple[str, ...]] = set()
    for node in body:
        if isinstance(node, ast.Import):
            found |= {(alias.name,) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module != "__future__":
            found |= {(str(node.module), alias.name) for alias in node.names}
    return found


def _import_lines(imports: Iterable[tuple[str, ...]]) -> list[str]:
    """Import statements in the usual order: the standard library first, whole modules before names."""
    names: dict[str, list[str]] = {}
    for module, *name in imports:
        names.setdefault(module if name else f"import {module}", []).extend(name)
    lines: tuple[list[str], list[str]] = ([], [])
    for module in sorted(names, key=lambda each: (not each.startswith("import "), each)):
        line = module if module.startswith("import ") else f"from {module} import {', '.join(names[module])}"
        if len(line) > _WIDTH:
            line = f"from {module} import (\n" + "".join(f"    {name},\n" for name in names[module]) + ")"
        standard = module.removeprefix("import ").split(".")[0] in sys.stdlib_module_names
        lines[0 if standard else 1].append(line)
    return [*lines[0], "", *lines[1]]
