"""Write `model_cards/`: README.md and config.json of each preset, as a push would write them.

python -m tools.model_cards
"""

from __future__ import annotations

from pathlib import Path

from rudder_hf.hub.push import repo_files
from rudder_hf.presets import get_preset, list_presets

FOLDER = Path(__file__).parent.parent / "model_cards"
# The code beside them is the same in every repository, and the package's own.
FILES = ("README.md", "config.json")


def card_files(preset: str) -> dict[str, str]:
    """The card and the settings of a preset's repository."""
    files = repo_files(get_preset(preset).config())
    return {name: files[name] for name in FILES}


def main() -> None:
    """Write the files of every preset."""
    for preset in list_presets():
        (FOLDER / preset).mkdir(parents=True, exist_ok=True)
        for name, text in card_files(preset).items():
            (FOLDER / preset / name).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
