"""How the embedded models of `rudder_hf.scenes` are made: `python -m tools.train_scenes --seed 0 --out FOLDER`."""
