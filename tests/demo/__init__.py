"""`make demo`: the same traffic on stock sglang and with pd-sidecar, side by side."""
