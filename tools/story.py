"""Run the cells of examples/story.ipynb and store their outputs, as the settings of the embedded model change them.

    python -m tools.story

Cells run in one namespace, like in Jupyter; what they print, the image or figure that their last line has, and
nothing that varies between runs is stored. `tests/docs/test_examples.py` compares the stored text.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent.parent / "examples" / "story.ipynb"


def run_cells(sources: list[str]) -> list[list[dict[str, Any]]]:
    """Return the outputs of code cells, in the notebook's own form."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run_cell(source, names) for source in sources]


def _run_cell(source: str, names: dict[str, Any]) -> list[dict[str, Any]]:
    tree, value, printed = ast.parse(source), None, io.StringIO()
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"image/png": base64.b64encode(_png(value)).decode(), "text/plain": [type(value).__name__]}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return outputs


def _png(value: Any) -> bytes:
    """The picture of a PIL image or of a figure of matplotlib."""
    file = io.BytesIO()
    if hasattr(value, "savefig"):
        value.savefig(file, format="png", dpi=80)
    else:
        value.save(file, format="png", optimize=True)
    return file.getvalue()


def main() -> None:
    """Store the outputs of all cells."""
    notebook = json.loads(NOTEBOOK.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = run_cells(["".join(cell["source"]) for cell in code])
    for number, (cell, found) in enumerate(zip(code, outputs, strict=True), start=1):
        cell["execution_count"], cell["outputs"] = number, found
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
    print(f"{NOTEBOOK}: {len(code)} cells")


if __name__ == "__main__":
    main()
