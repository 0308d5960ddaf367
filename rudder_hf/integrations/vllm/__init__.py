"""RUDDER inside vLLM: per-request steering under continuous batching.

vLLM finds `register` by the entry point `vllm.general_plugins` and calls it in each of its processes. An engine is
steered when it is started with settings:

    --additional-config '{"rudder": "org/llava-1.5-7b-rudder"}'

and is otherwise as it was. What each file does, from the request to the layer:

| file | what |
|---|---|
| `settings` | settings of the engine and of one request, checked |
| `engine` | what vLLM's config has to be for RUDDER: worker and scheduler, and refusals by name |
| `requests` | bad settings of a request become HTTP 400 |
| `scheduler` | blocks of the prefix cache that steering changed are not shared; requests are counted |
| `metrics` | the counters at `/metrics` |
| `planning` | which token of a batch is prompt and which is answer; slots; blocks and their names |
| `runner`, `worker` | the plan of each step, made before the forward |
| `buffers`, `operator` | pooled sums and settings per slot; the equations on a flat batch |
| `layers` | where the operator meets the target layer |

Only the standard library is imported here: vLLM loads this module in all its processes.
"""

from __future__ import annotations

__all__ = ["TESTED", "register"]

# The oldest and the newest release of vLLM that `python -m tests.vllm` passed with: what the extras in pyproject.toml
# allow and what is recorded in benchmarks/vllm.
TESTED = ("0.31", "0.32")


def register() -> None:
    """Tell vLLM's registry of config checks about RUDDER; engines without RUDDER settings are not touched.

    Raises:
        RuntimeError: This vLLM has no such registry. It is not passed over: settings would be ignored in silence.
    """
    try:
        from .engine import register_checks
    except (ImportError, AttributeError) as error:
        raise RuntimeError(misfit(str(error))) from error
    register_checks()


def misfit(changed: str) -> str:
    """What to say of a vLLM whose internals are not those that RUDDER builds on."""
    from vllm import __version__

    return (
        f"RUDDER does not fit vLLM {__version__}: {changed}. It is tested with vLLM {TESTED[0]} to {TESTED[1]}: "
        "install one of these, or a newer rudder-hf. To use this vLLM without RUDDER: pip uninstall rudder-hf."
    )
