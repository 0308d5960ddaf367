"""An evaluation from beginning to end: answers, result, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..methods import Method
from ..metrics.errors import InputError
from ..runtime.progress import Progress, no_progress
from ..runtime.store import RESULT_FILE, write_over
from .result import Result
from .run import Run
from .scoring import Scoring
from .tables import markdown, paper_latex

TABLE_FILE, LATEX_FILE = "table.md", "table.tex"


def evaluate(
    run: Run, methods: Sequence[Method], scoring: Scoring | None = None, progress: Progress = no_progress
) -> Result | None:
    """Answer with some methods what is missing, and score everything that the folder holds.

    Args:
        run: After `begin`.
        methods: What to answer with; differences are to the first that the folder got.
        scoring: Lineage, parser, draws of the bootstrap.
        progress: Is called with how far this process is.

    Returns:
        The result; None while other processes still have to finish, the last of which writes it.
    """
    if not run.answer(methods, progress):
        return None
    return save_result(run.result(scoring or Scoring()), run.path)


def save_result(result: Result, folder: Path, tables: bool = True) -> Result:
    """Write a result, and its tables if wanted, or return the one that is there, if it says the same."""
    try:
        stored = Result.load(folder)
    except InputError:
        stored = None
    if stored is not None and replace(stored, run={}) == replace(result, run={}):
        return stored
    if tables:
        write_over(folder / TABLE_FILE, markdown(result))
        write_over(folder / LATEX_FILE, paper_latex([result]))
    # Last: a folder with this file is complete.
    write_over(folder / RESULT_FILE, result.to_json())
    return result
