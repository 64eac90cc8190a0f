"""Decisions only: no I/O, no clock, no logging, no randomness. Time is an argument."""
