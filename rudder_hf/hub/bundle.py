"""The Python files of a settings repository, joined from the modules of this package.

`modeling_rudder.py` loads and steers a model, `pipeline_rudder.py` is the image-to-text pipeline, and
`custom_generate/generate.py` steers one call. Each is a plain join of a module and of all that it imports: the text of
the modules, one section for each, with all imports once at the top. The method comes first, hardening last.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.version import OLDEST_TRANSFORMERS
from .saving import settings_block

_PACKAGE = Path(__file__).parents[1]
# The order to read in, as far as Python lets: a module whose names another one uses while it is imported (as a base
# class, a decorator, a default) stands before that one. All other names are looked up when they are used.
_ORDER = (
    *("core/steering.py", "core/state.py", "core/hooks.py", "core/generate.py", "core/handle.py", "core/attach.py"),
    *("core/settings.py", "core/configuration.py", "hub/custom_generate.py", "hub/modeling.py", "hub/loading.py"),
    *("core/call.py", "core/contrast.py", "core/backbones.py", "hub/saving.py", "core/errors.py", "core/version.py"),
    *("core/trust.py", "core/families.py", "hub/images.py", "hub/pipeline.py"),
)
_MODELING = ("hub/modeling.py",)
_PIPELINE = ("hub/pipeline.py",)
_GENERATE = ("hub/custom_generate.py",)

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


def modeling_source() -> str:
    """Return the text of `modeling_rudder.py`."""
    intro = "RUDDER for transformers: loads the base model that `config.json` names, and steers its `generate`."
    return _join(intro, _MODELING)


def pipeline_source() -> str:
    """Return the text of `pipeline_rudder.py`."""
    return _join('RUDDER for transformers: `pipeline("image-to-text", THIS_REPOSITORY)`.', _PIPELINE)


def custom_generate_source(settings: Mapping[str, Any]) -> str:
    """Return the text of `custom_generate/generate.py`, with the settings in it: transformers hands it no config."""
    intro = "RUDDER for one call of a stock model: `model.generate(..., custom_generate=THIS_REPOSITORY)`."
    return (
        _join(intro, _GENERATE)
        + f"\n\n{_SECTION}the settings of this repository\n{settings_block(settings)}\n\n"
        + "def generate(model, **kwargs):\n"
        + '    """Run the model\'s own `generate`, steered; takes `rudder=` and `output_rudder=` too."""\n'
        + "    return generate_steered(model, SETTINGS, **kwargs)\n"
    )


def joined_modules(roots: Iterable[str]) -> list[str]:
    """Return the modules that some modules need, themselves included, in the order of the joined file."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for node in ast.parse((_PACKAGE / name).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and node.level:
                folder = Path(name).parents[node.level - 1]
                waiting.append((folder / f"{(node.module or '').replace('.', '/')}.py").as_posix())
    return sorted(found, key=_ORDER.index)


@functools.cache
def _join(intro: str, roots: tuple[str, ...]) -> str:
    """Join modules and what they need under one header, with those imports that they use."""
    imports: set[tuple[str, ...]] = set()
    chosen = []
    for name in joined_modules(roots):
        source = (_PACKAGE / name).read_text(encoding="utf-8")
        module = ast.parse(source)
        imports |= _imports(module.body)
        # The docstring and all imports stand together at the top of each module.
        top = [node for node in module.body if isinstance(node, (ast.Import, ast.ImportFrom)) or node.lineno == 1]
        rest = "".join(source.splitlines(keepends=True)[top[-1].end_lineno :])
        about = "\n".join(f"# {line}".rstrip() for line in (ast.get_docstring(module) or "").splitlines())
        chosen.append(f"{_SECTION}{name}\n\n{about}\n\n{rest.strip()}\n")
    used = {node.id for node in ast.walk(ast.parse("\n".join(chosen))) if isinstance(node, ast.Name)}
    header = f'''"""{intro}

Joined from the modules of the Python package rudder_hf, one section for each, when this repository was written. Change
the package, not this file. Needs the standard library, torch and transformers.
"""
'''
    lines = _import_lines([each for each in sorted(imports) if each[-1].split(".")[0] in used])
    top_lines = [header, "from __future__ import annotations", "", _VERSION_CHECK, *lines]
    return "\n".join(top_lines) + "\n\n" + "\n\n".join(chosen)


def _imports(body: list[ast.stmt]) -> set[tuple[str, ...]]:
    """Return absolute imports as (module,) or (module, name). Modules of the package are in the file already."""
    found: set[tuple[str, ...]] = set()
    for node in body:
        if isinstance(node, ast.Import):
            found |= {(alias.name,) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module != "__future__":
            found |= {(str(node.module), alias.name) for alias in node.names}
    return found


def _import_lines(imports: Iterable[tuple[str, ...]]) -> list[str]:
    """Write import statements in the usual order: the standard library first, whole modules before names."""
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
