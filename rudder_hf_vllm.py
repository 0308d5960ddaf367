"""Where vLLM finds RUDDER: the entry point `vllm.general_plugins`.

vLLM logs errors of *importing* a plugin and goes on without it, but stops at errors of calling it. So this module
imports nothing until it is called.
"""


def register() -> None:
    """Tell vLLM about RUDDER; engines without RUDDER settings are not touched.

    Raises:
        RuntimeError: RUDDER cannot be imported in this environment, or does not fit this vLLM. vLLM does not start:
            it would ignore RUDDER settings in silence.
    """
    try:
        from rudder_hf.integrations.vllm.engine import register_checks
    except Exception as error:
        raise RuntimeError(
            f"RUDDER cannot be imported beside this vLLM: {type(error).__name__}: {error}. Install versions that fit, "
            "see docs/serving.md. To use this vLLM without RUDDER: pip uninstall rudder-hf."
        ) from error
    register_checks()
