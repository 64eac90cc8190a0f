"""Faults played on real processes: sidecars, ranks, decode endpoints, links. Each scene ends with a ledger."""
