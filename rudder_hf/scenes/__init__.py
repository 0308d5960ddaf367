"""Synthetic scenes with COCO annotations, and the training of a small LLaVA on them: a test bed that hallucinates.

`python -m rudder_hf.scenes.coco --out FOLDER --split evaluation` writes pictures and annotations in COCO's format, bit
for bit the same everywhere; `python -m rudder_hf.scenes.train --seed 0 --out FOLDER` trains the model. No trained
weights are part of the package.
"""
