"""The sglang plugin: thin hooks that see aborts and handshakes, detect drain, and tell the sidecar."""

import logging

logger = logging.getLogger("pd_sidecar")


def register() -> None:
    """Entry point of the group `sglang.srt.plugins`. Never raises; sglang calls it in every process of an engine."""
    try:
        from sglang_hooks.plugin import install  # noqa: PLC0415 - nothing of sglang is imported before it loads us

        install()
    except Exception:
        logger.exception("pd-sidecar: not loaded; the engine runs as stock sglang does")
