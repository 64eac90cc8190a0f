"""Rounds of mixed traffic and aborts on a real pair; after each one nothing may be left, hang or be wrong."""
