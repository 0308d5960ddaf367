"""The repositories of the presets, as they would be pushed, in a folder of their own.

python -m rudder_hf.model_cards [FOLDER]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .presets_rudder import get_preset, list_presets
from .sharing_rudder import repo_files

_PACKAGE = Path(__file__).parent


def preset_files(name: str) -> dict[str, str]:
    """The files of a preset's repository: path in the repository -> text."""
    return repo_files(get_preset(name).config())


def write_model_cards(folder: Path) -> None:
    """Write one folder for each preset, and nothing else in them.

    The code is the package's: where it lies beside the folder, in a checkout, it is linked instead of copied.
    """
    link_code = folder.resolve().parent == _PACKAGE.resolve().parent
    for name in list_presets():
        files = preset_files(name)
        for old in (folder / name).rglob("*"):
            if not old.is_dir() and old.relative_to(folder / name).as_posix() not in files:
                old.unlink()
        for file, text in files.items():
            path = folder / name / file
            code = _PACKAGE / path.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if link_code and path.name.endswith("_rudder.py"):
                path.symlink_to(os.path.relpath(code, path.parent))
            else:
                path.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write_model_cards(Path(sys.argv[1] if len(sys.argv) > 1 else "model_cards"))
