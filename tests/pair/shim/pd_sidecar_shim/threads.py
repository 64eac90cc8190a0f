"""A thread that an exception ends: in sglang nothing else tells of it but a traceback in the log."""

import threading

from pd_sidecar_shim.journal import note


def apply() -> None:
    report = threading.excepthook

    def excepthook(args: threading.ExceptHookArgs) -> None:
        note("thread_died", thread=args.thread.name if args.thread else "", error=repr(args.exc_value))
        report(args)

    threading.excepthook = excepthook
