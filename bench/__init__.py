"""Figures of the sidecar and of the plugin's stream, each beside its baseline from the same run. `python -m bench`."""
