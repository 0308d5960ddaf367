"""Yes/no questions about the scenes, as POPE asks them.

The published results on scenes rest on these very questions. `rudder_hf.metrics.pope_questions`, which makes questions
from COCO files, draws and breaks ties in another way.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from .images import Scene
from .world import NAMES


def pope_questions(scenes: list[Scene], kind: str, seed: int = 0) -> list[tuple[int, str, bool]]:
    """POPE's questions (scene number, object, present): three positives per scene, each followed by a negative."""
    if kind not in ("random", "popular", "adversarial"):
        raise ValueError(f"unknown POPE split {kind!r}; choose random, popular or adversarial")
    random = np.random.RandomState(seed)
    popular = [n for n, _ in Counter(n for s in scenes for n in s.names).most_common()]
    together: dict[str, Counter[str]] = {n: Counter() for n in NAMES}
    for scene in scenes:
        for name in scene.names:
            together[name].update(n for n in scene.names if n != name)
    questions = []
    for number, scene in enumerate(scenes):
        if len(scene.names) < 3:
            continue
        used = set(scene.names)
        for name in scene.names[:3]:
            order = {
                "random": [NAMES[int(i)] for i in random.permutation(len(NAMES))],
                "popular": popular,
                "adversarial": [n for n, _ in together[name].most_common()] + popular,
            }[kind]
            negative = next(n for n in (*order, *NAMES) if n not in used)  # few scenes have few popular objects
            used.add(negative)
            questions += [(number, name, True), (number, negative, False)]
    return questions
