"""The decode half: loaded by the same plugin where sglang decodes. Prefill's notices need it only for the cause, the
client's status and the acknowledgement; the guard of the control thread is always there.
"""
