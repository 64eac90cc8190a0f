"""`python -m tests.pair`: launches a pair, prints where it is, and ends it at Ctrl-C."""

import argparse
import signal
from typing import NoReturn

from tests.pair.progress import say
from tests.pair.recipes import RECIPES
from tests.pair.running import Pair, running_pair
from tests.pair.side import PairSpec


def main() -> None:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _leave)
    spec = PairSpec.of(
        sglang=options.sglang,
        decode={"sglang": options.decode_sglang or options.sglang},
        backend=options.backend,
        plugin=options.plugin,
        tp=options.tp,
        overlap=options.overlap,
        timeout_s=options.timeout_s,
    )
    try:
        with running_pair(spec) as pair:
            _show(pair)
            signal.pause()
    except KeyboardInterrupt:
        say("ended")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.pair", description=__doc__)
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--plugin", dest="plugin", action="store_true", default=True, help="with pd-sidecar (default)")
    half.add_argument("--stock", dest="plugin", action="store_false", help="sglang as it is")
    parser.add_argument("--sglang", default="0.5.18", choices=RECIPES)
    parser.add_argument("--decode-sglang", choices=RECIPES, help="decode's version, if it is another one")
    parser.add_argument("--backend", default="mooncake", choices=("mooncake", "nixl"))
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--no-overlap", dest="overlap", action="store_false")
    parser.add_argument("--timeout-s", type=int, default=40, help="sglang's waiting and bootstrap timeouts")
    return parser


def _show(pair: Pair) -> None:
    say(f"prefill    {pair.prefill.url}   bootstrap port {pair.prefill.ports.bootstrap}")
    say(f"decode     {pair.decode.url}")
    say(f"socket     {pair.socket}   admin port {pair.admin_port}")
    say(f"events     {pair.events.path}")
    say(f"controls   touch {pair.control}/hold or {pair.control}/fail")
    say("Ctrl-C ends the pair")


def _leave(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
