"""What may be asked of figures that a real pair gives."""

import argparse


def asked(prog: str, *, minutes: float) -> argparse.Namespace:
    """`minutes` is what it takes if nobody says; `sglang` the version of both servers."""
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--sglang", default="0.5.18")
    return parser.parse_args()
