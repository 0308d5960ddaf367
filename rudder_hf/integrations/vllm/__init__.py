"""RUDDER inside vLLM: per-request steering under continuous batching.

vLLM finds `rudder_hf_vllm.register` by the entry point `vllm.general_plugins` and calls it in each of its processes,
which leads to `engine.register_checks`. An engine is steered when it is started with settings:

    --additional-config '{"rudder": "org/llava-1.5-7b-rudder"}'

and is otherwise as it was. What each file does, from the request to the layer:

| file | what |
|---|---|
| `settings` | settings of the engine and of one request, checked |
| `engine` | what vLLM's config has to be for RUDDER: worker and scheduler, and refusals by name |
| `requests` | bad settings of a request become HTTP 400 |
| `scheduler` | blocks of the prefix cache that steering changed are not shared; requests are counted |
| `metrics` | what `/metrics` says of RUDDER |
| `planning` | which token of a batch is prompt and which is answer; slots; blocks and their names |
| `worker` | the worker and its model runner: the plan of each step, made before the forward |
| `buffers`, `operator` | pooled sums and settings per slot; the equations on a flat batch |
| `layers` | where the operator meets the target layer |
"""

from __future__ import annotations

# The oldest and the newest release of vLLM that `python -m tests.vllm` passed with: what the extras in pyproject.toml
# allow and what is recorded in benchmarks/vllm.
TESTED = ("0.31", "0.32")


def misfit(changed: str) -> str:
    """Return the message for a vLLM whose internals are not those that RUDDER builds on."""
    from vllm import __version__

    return (
        f"RUDDER does not fit vLLM {__version__}: {changed}. It is tested with vLLM {TESTED[0]} to {TESTED[1]}: "
        "install one of these, or a newer rudder-hf. To use this vLLM without RUDDER: pip uninstall rudder-hf."
    )
