"""Write a split of the scenes as COCO data: PNG images, `instances_SPLIT.json`, `captions_SPLIT.json`.

```python
write_split(Path("scenes"), "evaluation")
```

Any reader of COCO can read the result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rudder_hf.scenes.captions import reference_captions
from rudder_hf.scenes.images import SIDE, Scene, draw, file_name, split_scenes
from rudder_hf.scenes.world import CATEGORIES

INFO = {"description": "rudder_hf synthetic scenes", "version": "2.0", "year": 2026, "contributor": "rudder_hf"}


def _images(scenes: list[Scene], split: str) -> dict[str, Any]:
    images = [{"id": s.seed, "file_name": file_name(s, split), "width": SIDE, "height": SIDE} for s in scenes]
    return {"info": INFO, "licenses": [], "images": images}


def instances(scenes: list[Scene], split: str) -> dict[str, Any]:
    """Return annotations in the form of COCO's `instances_*.json`; the image id is the scene's seed."""
    annotations, ids = [], {category.name: category.id for category in CATEGORIES}
    for scene in scenes:
        for number, thing in enumerate(scene.things):
            box = [float(v) for v in (thing.x, thing.y, thing.size, thing.size)]
            left, top, right, bottom = box[0], box[1], box[0] + box[2], box[1] + box[3]
            annotations.append({
                "id": scene.seed * 10 + number,
                "image_id": scene.seed,
                "category_id": ids[thing.name],
                "bbox": box,
                "area": box[2] * box[3],
                "segmentation": [[left, top, right, top, right, bottom, left, bottom]],
                "iscrowd": 0,
            })  # fmt: skip
    categories = [{"id": c.id, "name": c.name, "supercategory": c.supercategory} for c in CATEGORIES]
    return {**_images(scenes, split), "annotations": annotations, "categories": categories}


def captions(scenes: list[Scene], split: str) -> dict[str, Any]:
    """Return two true reference captions per image in the form of COCO's `captions_*.json`."""
    annotations = []
    for scene in scenes:
        texts = enumerate(reference_captions(scene))
        annotations += [{"id": scene.seed * 10 + n, "image_id": scene.seed, "caption": text} for n, text in texts]
    return {**_images(scenes, split), "annotations": annotations}


def write_split(out: Path, split: str, scenes: list[Scene] | None = None) -> Path:
    """Write images and annotations of a split below `out`; return the folder of the images."""
    scenes = split_scenes(split) if scenes is None else scenes
    folder = out / split
    folder.mkdir(parents=True, exist_ok=True)
    for scene in scenes:
        draw(scene).save(folder / file_name(scene, split), optimize=True)
    (out / "annotations").mkdir(exist_ok=True)
    for make in (instances, captions):
        (out / "annotations" / f"{make.__name__}_{split}.json").write_text(json.dumps(make(scenes, split)))
    return folder
