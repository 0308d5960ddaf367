"""What is gathered, on disk: a batch that is read is not read again when an interrupted command is repeated.

analysis.json   what is analysed; a folder with another one is refused
gathered/       one file for each batch (CARDs, answers and traces), and the layers' statistics
numbers.json    written last: a folder with it is complete, and never written to again
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..runtime.journal import write_new
from .gathering import Seen
from .tokens import Written

PLAN, GATHERED, NUMBERS = "analysis.json", "gathered", "numbers.json"


class Store:
    """The files of one analysis.

    Args:
        path: Its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.gathered = path / GATHERED

    def check(self) -> None:
        """See that the folder is new or an unfinished analysis, before a model is loaded.

        Raises:
            ValueError: It is something else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: give a new folder.")
        if (self.path / NUMBERS).exists():
            raise ValueError(f"{self.path} holds a finished analysis, which is never overwritten: give a new folder.")
        if self.path.is_dir() and not (self.path / PLAN).exists() and any(self.path.iterdir()):
            raise ValueError(f"{self.path} is not empty and holds no analysis of rudder analyze: give a new folder.")

    def start(self, plan: dict[str, Any]) -> None:
        """Begin, or go on with the same analysis.

        Raises:
            ValueError: The folder belongs to another analysis.
        """
        self.check()
        if write_new(self.path / PLAN, json.dumps(plan, indent=1, ensure_ascii=False) + "\n"):
            return
        stored = json.loads((self.path / PLAN).read_text(encoding="utf-8"))
        wanted = json.loads(json.dumps(plan))
        different = sorted(name for name in {*stored, *wanted} if stored.get(name) != wanted.get(name))
        if different:
            raise ValueError(
                f"{self.path} holds an unfinished analysis with another {different[0]}: give a new folder, or repeat "
                "its command to go on."
            )

    def batch(self, number: int) -> list[Seen] | None:
        """A batch that was read before."""
        path = self._file(number)
        if not path.is_file():
            return None
        try:
            with safe_open(str(path), framework="np") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}  # noqa: SIM118
            rows = json.loads(metadata["answers"])
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}): delete it, and its pictures are read again.") from error
        text = tensors.get("text_card")
        return [
            Seen(
                sample=row["sample"],
                vanilla=Written.from_dict(row["vanilla"]),
                steered=Written.from_dict(row["steered"]),
                card=tensors["card"][place],
                text_card=None if text is None else text[place],
            )
            for place, row in enumerate(rows)
        ]

    def keep(self, number: int, batch: list[Seen]) -> list[Seen]:
        """Write a batch, whole or not at all, and return it as it will be read again."""
        self.gathered.mkdir(parents=True, exist_ok=True)
        tensors = {"card": np.stack([seen.card for seen in batch]).astype(np.float32)}
        text = [seen.text_card for seen in batch if seen.text_card is not None]
        if len(text) == len(batch):
            tensors["text_card"] = np.stack(text).astype(np.float32)
        draft = self.gathered / f".{uuid.uuid4().hex}"
        try:
            metadata = {"answers": json.dumps([seen.answers() for seen in batch], ensure_ascii=False)}
            save_file(tensors, draft, metadata=metadata)
            os.replace(draft, self._file(number))
        finally:
            draft.unlink(missing_ok=True)
        stored = self.batch(number)
        assert stored is not None
        return stored

    def _file(self, number: int) -> Path:
        return self.gathered / f"batch-{number:05d}.safetensors"

    def layers(self) -> list[dict[str, Any]] | None:
        """The layers' statistics, if they were gathered before."""
        path = self.gathered / "layers.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def keep_layers(self, rows: list[dict[str, Any]]) -> None:
        """Write the layers' statistics."""
        write_new(self.gathered / "layers.json", json.dumps(rows) + "\n")
