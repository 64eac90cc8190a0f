"""Several prefill ranks as real processes: sglang's own event loop, scheduler methods, manager, senders and MIN
all-reduce over Gloo, with the model and the vendor's transfer engine left out. The test is the tokenizer and decode.

Each iteration of a rank's event loop begins with what the test sends it, so every interleaving is exact. `company`
is the test's side, `rank` the process's.
"""
