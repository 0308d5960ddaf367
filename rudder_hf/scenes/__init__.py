"""Synthetic scenes with COCO annotations, and small models trained on them: a test bed that hallucinates.

`rudder_hf.scenes.captions.write_split` writes images and annotations in COCO's format, the same ones everywhere;
`rudder_hf.scenes.embedded` loads the trained models, which are in `models/`.
`tools/train_scenes` in the source repository trains them.
"""
