"""Codecs between bytes and the values of `sidecar.model`. Pure."""
