"""A real sglang prefill/decode pair on a CPU, as test code. Start with README.md beside this file."""
