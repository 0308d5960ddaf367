"""Synthetic scenes with COCO annotations, and small models trained on them: a test bed that hallucinates.

`python -m rudder_hf.scenes.coco --out FOLDER --split evaluation` writes pictures and annotations in COCO's format, bit
for bit the same everywhere; `python -m rudder_hf.scenes.train --seed 0 --out FOLDER` trains a model;
`rudder_hf.scenes.embedded` loads the trained ones, which lie in `models/`.
"""
