"""`python -m tests.demo`: plays, prints the table, writes build/demo.json; its exit status says whether all holds."""

import asyncio
import signal
import sys
from typing import NoReturn

from tests.demo.figures import misses
from tests.demo.playing import play_both, play_both_quickly, play_stock
from tests.demo.report import as_json, table, write_json
from tests.demo.settings import Settings, settings
from tests.pair.paths import build_dir
from tests.pair.progress import say


def main() -> int:
    asked = settings()
    signal.signal(signal.SIGTERM, _leave)
    try:
        return asyncio.run(_show_stock(asked) if asked.stock_only else _show_both(asked))
    except KeyboardInterrupt:
        say("interrupted")
        return 130


async def _show_stock(asked: Settings) -> int:
    figures = await play_stock(asked)
    print(f"\n{table(figures, [])}\n")
    return 0 if all(one.decode_hung for one in figures if one.name in asked.hangs_in_stock) else 1


async def _show_both(asked: Settings) -> int:
    shown = await (play_both_quickly(asked) if asked.quick else play_both(asked))
    path = build_dir() / "demo.json"
    write_json(path, as_json(asked, shown))
    print(f"\n{table(shown.stock, shown.ours)}\n")
    same = "identical" if shown.ok.outputs_identical else "DIFFERENT"
    speed = f"{shown.ok.throughput_ratio:.3f} (+- {shown.ok.half_width:.3f}, {len(shown.ok.ratios)} rounds)"
    print(f"normal traffic: outputs {same}, throughput {speed} of stock's")
    print(f"D's waiting timeout was {asked.timeout_s:.0f} s (stock default: 300 s). Written to {path}")
    found = misses(shown.stock, shown.ours, shown.ok, asked.hangs_in_stock, asked.criteria)
    if shown.seen:
        print(shown.seen)
        found += shown.seen.misses(asked.tp * asked.pp)
    for miss in found:
        print(f"MISSED  {miss}")
    return 1 if found else 0


def _leave(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
