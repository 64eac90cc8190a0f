"""What may come in at the socket of a rank, read frame by frame: pure, for every backend and every supported sglang.

Anybody can write to these sockets, and stock's threads end for good over a message that they cannot read. A message is
either one that stock takes, or junk.
"""
