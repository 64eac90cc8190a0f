"""Hook bodies, by the part of sglang they wrap. Each takes the original first (sglang's HookType.AROUND) or the
result (AFTER).

What is ours is contained; the call into the original never is, and it runs also when our part has failed.
"""
