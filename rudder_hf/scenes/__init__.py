"""Synthetic scenes with COCO annotations, and small models trained on them: a test bed that hallucinates.

`rudder_hf.scenes.images` makes scenes and draws them, bit for bit the same everywhere; `rudder_hf.scenes.embedded`
loads the trained models, which are in `models/`. `tools/train_scenes` in the source repository trains them, and writes
scenes as COCO's files.
"""
