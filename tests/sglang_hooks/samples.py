"""Control messages as sglang's two sides send them, and such as nobody should. Used on the reader and on sglang's own
threads.
"""

import struct

from sglang_hooks.messages.fields import BYTES_LIMIT, FRAMES_LIMIT
from sglang_hooks.messages.values import Family, Reason
from sidecar.model import DecodeEndpoint
from sidecar.wire.decode_half import ACKNOWLEDGED, MAGIC_INDEX

DECODE = DecodeEndpoint("10.0.0.7", 7001)
HERE = [b"10.0.0.7", b"7001"]
NIXL_GUARD, MORI_GUARD = b"NixlMsgGuard", b"MoriMsgGuard"

POINTERS, INDICES = struct.pack("<2Q", 1, 2), struct.pack("<3i", 1, 2, 3)
LISTS = struct.pack("<3I", 2, 4, 8) + bytes(12)
LONG_LISTS = struct.pack("<2I", 1, 16) + bytes(16)

MOONCAKE_LAST = [LISTS, LISTS, INDICES, LISTS, b"", b"", b"1", b"0", b"", POINTERS]
NIXL_LAST = [b"", b"", b"", b"", b"8", b"VRAM,VRAM", POINTERS, b"", INDICES, b"1", b"0"]
REGISTRATIONS = {
    Family.MOONCAKE: [b"None", *HERE, b"10.0.0.7:9", POINTERS, POINTERS, LONG_LISTS, b"0", b"1", b"64", *MOONCAKE_LAST],
    Family.NIXL: [NIXL_GUARD, b"None", *HERE, b"agent", b"\xff", POINTERS, POINTERS, b"", *[b"1"] * 4, *NIXL_LAST],
    Family.MORI: [MORI_GUARD, b"None", *HERE, b"agent", b"", b"", b"", *[b"1"] * 4, b"", b""],
}
METADATA = {
    Family.MOONCAKE: [b"4711", *HERE, b"10.0.0.7:9", INDICES, b"3", LISTS, b"1", b"0", b""],
    Family.NIXL: [NIXL_GUARD, b"4711", *HERE, b"agent", INDICES, b"3", b"1", LISTS, b"0", b"0"],
    Family.MORI: [MORI_GUARD, b"4711", *HERE, b"agent", INDICES, b"3", b"", b"1", b""],
}
DUMMIES = {
    Family.MOONCAKE: [b"4711", *HERE, b"10.0.0.7:9", b"", b"", b"", b"1", b"0", b""],
    Family.NIXL: [NIXL_GUARD, b"4711", *HERE, b"agent", b"", b"0", b"1", b"", b"0", b"1"],
    Family.MORI: [MORI_GUARD, b"4711", *HERE, b"agent", b"", b"", b"", b"1", b""],
}
ABORT = [b"ABORT", b"4711", *HERE]


def changed(frames: list[bytes], index: int, frame: bytes) -> list[bytes]:
    return [*frames[:index], frame, *frames[index + 1 :]]


PREFILL_JUNK: dict[str, tuple[list[bytes], Reason]] = {
    "hello": ([b"HELLO"], Reason.UNKNOWN_TAG),
    "no_frames": ([], Reason.TOO_SHORT),
    "empty": ([b""], Reason.UNKNOWN_TAG),
    "http": ([b"GET / HTTP/1.1", b"x"], Reason.UNKNOWN_TAG),
    "not_ascii": ([b"\xff\xfe", b"1", b"2", b"3"], Reason.NOT_ASCII),
    "status_for_decode": ([b"4711", b"0", b"0"], Reason.TOO_SHORT),
    "four_frames": (METADATA[Family.MOONCAKE][:4], Reason.TOO_SHORT),
    "odd_indices": (changed(METADATA[Family.MOONCAKE], 4, b"12345"), Reason.MISMATCHED),
    "aux_no_number": (changed(METADATA[Family.MOONCAKE], 5, b"x"), Reason.MISMATCHED),
    "aux_not_ascii": (changed(METADATA[Family.MOONCAKE], 5, b"\xff"), Reason.NOT_ASCII),
    "short_lists": (changed(METADATA[Family.MOONCAKE], 6, b"123"), Reason.MISMATCHED),
    "lists_that_say_too_many": (changed(METADATA[Family.MOONCAKE], 6, b"\xff" * 8), Reason.MISMATCHED),
    "lists_of_odd_length": (
        changed(METADATA[Family.MOONCAKE], 6, struct.pack("<2I", 1, 3) + b"123"),
        Reason.MISMATCHED,
    ),
    "count_no_number": (changed(METADATA[Family.MOONCAKE], 7, b""), Reason.MISMATCHED),
    "port_no_number": (changed(METADATA[Family.MOONCAKE], 2, b"http"), Reason.MISMATCHED),
    "port_zero": (changed(METADATA[Family.MOONCAKE], 2, b"0"), Reason.MISMATCHED),
    "port_too_high": (changed(METADATA[Family.MOONCAKE], 2, b"65536"), Reason.MISMATCHED),
    "host_that_zmq_refuses": (changed(METADATA[Family.MOONCAKE], 1, b"no host"), Reason.MISMATCHED),
    "session_without_port": (changed(METADATA[Family.MOONCAKE], 3, b"session"), Reason.MISMATCHED),
    "session_with_a_word_for_port": (changed(METADATA[Family.MOONCAKE], 3, b"host:port"), Reason.MISMATCHED),
    "registration_too_short": (REGISTRATIONS[Family.MOONCAKE][:9], Reason.TOO_SHORT),
    "odd_pointers": (changed(REGISTRATIONS[Family.MOONCAKE], 4, b"123456789"), Reason.MISMATCHED),
    "rank_no_number": (changed(REGISTRATIONS[Family.MOONCAKE], 7, b"x"), Reason.MISMATCHED),
    "layer_ids_odd": (changed(REGISTRATIONS[Family.MOONCAKE], 12, b"123"), Reason.MISMATCHED),
    "staging_no_number": (changed(REGISTRATIONS[Family.MOONCAKE], 15, b"x"), Reason.MISMATCHED),
    "abort_no_room": ([b"ABORT"], Reason.TOO_SHORT),
    "abort_room_no_number": (changed(ABORT, 1, b"x"), Reason.MISMATCHED),
    "watermark_short": ([b"WATERMARK", b"1"], Reason.TOO_SHORT),
    "watermark_no_number": ([b"WATERMARK", b"1", b"x"], Reason.MISMATCHED),
    "too_many_frames": ([*METADATA[Family.MOONCAKE], *[b""] * FRAMES_LIMIT], Reason.OVERSIZED),
    "too_many_bytes": ([*METADATA[Family.MOONCAKE], bytes(BYTES_LIMIT)], Reason.OVERSIZED),
    "ack_of_no_room": (
        [*REGISTRATIONS[Family.MOONCAKE], *[b""] * 20, ACKNOWLEDGED + b"x"][: MAGIC_INDEX + 1],
        Reason.MISMATCHED,
    ),
}
"""Each of these ends the bootstrap thread of a stock Mooncake prefill, its transfer worker or its scheduler, except the
oversized ones, which cost memory, and the ack, which nobody sends."""

AUX = [b"AUX_DATA", b"4711", b"1", b"2", (3).to_bytes(4, "big"), b"abc"]
CHUNK = [b"CHUNK_READY", b"4711", b"0", b"0", b"4", b"session", b"0"]
REQUEST = [b"STAGING_REQ", b"4711", b"0", b"4", b"session", b"0"]

DECODE_JUNK: dict[str, tuple[list[bytes], Reason]] = {
    "hello": ([b"HELLO"], Reason.UNKNOWN_TAG),
    "three_words": ([b"not", b"a", b"status"], Reason.UNKNOWN_TAG),
    "not_ascii": ([b"\xff", b"0", b"0"], Reason.NOT_ASCII),
    "two_frames": ([b"4711", b"0"], Reason.TOO_SHORT),
    "status_no_number": ([b"4711", b"x", b"0"], Reason.MISMATCHED),
    "rank_not_ascii": ([b"4711", b"0", b"\xff"], Reason.NOT_ASCII),
    "nothing": ([], Reason.TOO_SHORT),
    "many": ([b"4711", b"0", b"0", *[b""] * FRAMES_LIMIT], Reason.OVERSIZED),
    "abort_ack_short": ([b"ABORT_ACK"], Reason.TOO_SHORT),
    "abort_ack_no_room": ([b"ABORT_ACK", b"x"], Reason.MISMATCHED),
    "abort_ack_no_rank": ([b"ABORT_ACK", b"4711", b"x"], Reason.MISMATCHED),
    "aux_short": (AUX[:5], Reason.TOO_SHORT),
    "aux_no_number": ([AUX[0], b"x", *AUX[2:]], Reason.MISMATCHED),
    "aux_length_of_three_bytes": ([*AUX[:4], b"abc", b"abc"], Reason.MISMATCHED),
    "aux_of_another_length": ([*AUX[:5], b"abcd"], Reason.MISMATCHED),
    "chunk_short": (CHUNK[:5], Reason.TOO_SHORT),
    "chunk_no_number": ([CHUNK[0], b"x", *CHUNK[2:]], Reason.MISMATCHED),
    "request_short": (REQUEST[:4], Reason.TOO_SHORT),
    "request_no_rank": ([*REQUEST[:5], b"x"], Reason.MISMATCHED),
}
"""Each of these ends the control thread of a stock Mooncake decode of 0.5.18, except an oversized one."""
