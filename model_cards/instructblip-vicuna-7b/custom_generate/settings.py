"""The settings of this repository, as in its config.json."""

SETTINGS = {
    "layer": 1,
    "alpha_max": 6.5,
    "k": 8.0,
    "c": 1.0,
    "g_min": 0.05,
    "g_max": 1.0,
    "norm_cap": None,
    "mode": "beta",
    "pool": "mean",
    "span": "prompt",
    "steer_first_token": False,
    "rudder_version": "0.1.0",
}
