"""`pd-sidecar status` and `pd-sidecar trace ROOM`: what a running sidecar knows, for people and for scripts."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any, TypeVar

import click
import msgspec

from sidecar.cli.client import (
    Admin,
    EndpointView,
    EventView,
    LifeEndpointView,
    LifeView,
    NoAnswerError,
    RankView,
    StatusView,
    TraceView,
)
from sidecar.model import ROOM_LIMIT, TOKENIZER

FOUND = "found"
"""The verdict of a hook point that is in."""

Command = TypeVar("Command", bound=Callable[..., Any])


def _with_address(command: Command) -> Command:
    command = click.option("--json", "as_json", is_flag=True, help="The document as the sidecar gives it.")(command)
    return click.option(
        "--admin", default="127.0.0.1:9464", envvar="PD_SIDECAR_ADMIN", show_envvar=True, help="HOST:PORT."
    )(command)


@click.command()
@_with_address
@click.option("--watch", is_flag=True, help="Again and again, until interrupted; with --json one line each time.")
@click.option("--interval-s", type=click.FloatRange(min=0.1), default=2.0, help="Between two looks of --watch.")
def status(admin: str, as_json: bool, watch: bool, interval_s: float) -> None:
    """Print who is connected, what is owed and to whom.

    Exit code: 0, or 1 when no sidecar answers.
    """
    asked = Admin(admin)
    if watch:
        _watch(asked, as_json=as_json, interval_s=interval_s)
        return
    body = asked.get("/v1/status")
    click.echo(_indented(body) if as_json else "\n".join(status_lines(asked.read(body, StatusView))))


@click.command()
@click.argument("room", type=click.IntRange(0, ROOM_LIMIT - 1))
@_with_address
def trace(room: int, admin: str, as_json: bool) -> None:
    """Print the lives of ROOM (sglang's bootstrap_room): how each ended, who was told, and why not yet.

    Exit code: 0, or 1 when no sidecar answers.
    """
    asked = Admin(admin)
    body = asked.get(f"/v1/rooms/{room}")
    click.echo(_indented(body) if as_json else "\n".join(trace_lines(asked.read(body, TraceView))))


def _watch(asked: Admin, *, as_json: bool, interval_s: float) -> None:
    """A sidecar that is being replaced is waited for."""
    while True:
        try:
            body = asked.get("/v1/status")
            shown = _one_line(body) if as_json else "\n".join(status_lines(asked.read(body, StatusView)))
            is_error = False
        except NoAnswerError as error:
            shown, is_error = f"pd-sidecar: {error}", True
        click.clear()  # does nothing unless stdout is a terminal
        click.echo(shown, err=is_error)
        time.sleep(interval_s)


def _indented(body: bytes) -> str:
    return msgspec.json.format(body, indent=2).decode()


def _one_line(body: bytes) -> str:
    return msgspec.json.format(body, indent=-1).decode()


def status_lines(view: StatusView) -> Iterator[str]:
    rooms, owed = view.rooms, view.owed
    oldest = "" if owed.oldest_age_s is None else f", the oldest for {owed.oldest_age_s:.1f} s"
    bounds = view.bounds
    yield f"epoch  {view.epoch}, version {view.version}"
    yield f"bounds {bounds.records} records, {bounds.connections} connections ({bounds.descriptors} descriptors)"
    yield f"rooms  {rooms.open} open, {rooms.records} records, {rooms.tombstones} tombstones"
    yield f"owed   {owed.total}, of these {owed.pending} pending{oldest}"
    yield ""
    if view.ranks:
        ranks = sorted(view.ranks, key=lambda rank: (rank.engine, rank.dp_rank, rank.prefill_rank))
        yield from _table(
            ("RANK", "TP PP DP", "PID", "ENGINE", "SGLANG", "BACKEND", "HOOKS"),
            map(_rank_row, ranks),
            map(_rank_colour, ranks),
        )
        for text in sorted({text for rank in ranks for text in rank.uncovered}):
            yield f"decode is not told of all that is refused: {text}"
    else:
        yield "no rank is connected"
    yield ""
    if view.endpoints:
        columns = ("ENDPOINT", "CONNECTION", "PENDING", "HANDED OFF", "REFUSALS", "RETRY", "TAKES", "BELIEVED BY")
        yield from _table(columns, map(_endpoint_row, view.endpoints), map(_endpoint_colour, view.endpoints))
    else:
        yield "no decode endpoint is known"
    if view.endpoints_left_out:
        yield f"and {view.endpoints_left_out} more"


def _rank_colour(rank: RankView) -> str | None:
    return None if set(rank.hooks.values()) <= {FOUND} else "red"


def _endpoint_colour(endpoint: EndpointView) -> str | None:
    if endpoint.pending:
        return "red" if endpoint.connection != "up" else "yellow"
    return "green" if endpoint.connection == "up" else None


def _rank_row(rank: RankView) -> tuple[str, ...]:
    verdicts = Counter(rank.hooks.values()).most_common()
    return (
        "tokenizer" if rank.role == TOKENIZER else str(rank.prefill_rank),
        f"{rank.tp_rank} {rank.pp_rank} {rank.dp_rank}",
        str(rank.pid),
        rank.engine,
        rank.sglang,
        rank.backend,
        ", ".join(f"{count} {verdict}" for verdict, count in verdicts),
    )


def _endpoint_row(endpoint: EndpointView) -> tuple[str, ...]:
    retry = "-" if endpoint.retry_in_s is None else f"in {endpoint.retry_in_s:.1f} s"
    return (
        _address(endpoint),
        endpoint.connection,
        str(endpoint.pending),
        str(endpoint.handed_off),
        str(endpoint.refusals_in_a_row),
        retry,
        endpoint.takes + (", holds pages" if endpoint.holds_pages else ""),
        endpoint.believed_by + (", in doubt since its connection was lost" if endpoint.is_in_doubt else ""),
    )


def _table(
    columns: tuple[str, ...], rows: Iterator[tuple[str, ...]], colours: Iterable[str | None] = ()
) -> Iterator[str]:
    """Each row in its colour; on what is no terminal click leaves colours out."""
    filled = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*filled, strict=True)]
    for row, colour in zip(filled, chain((None,), colours, repeat(None)), strict=False):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        yield click.style(line, bold=row is columns, fg=colour)


def trace_lines(view: TraceView) -> Iterator[str]:
    if not view.lives:
        yield f"room {view.room}: nothing is known; it was never heard of, or ended so long ago that it is forgotten"
        return
    yield f"room {view.room}, at {view.at}"
    for life in view.lives:
        yield ""
        yield click.style(f"  life {life.life} at {_rank_of(life)}: {_end_of(life)}", bold=True)
        if not life.endpoints:
            yield "    no decode endpoint shook hands"
        for endpoint in life.endpoints:
            yield f"    {click.style(_address(endpoint), fg=_COLOURS.get(endpoint.notice))}  {endpoint.in_words}"
        yield from _table(("    AT (UTC)", "AGO", "ENDPOINT", "EVENT"), map(_event_row, life.events))


_COLOURS = {
    "pending": "yellow",
    "handed_off": "yellow",
    "expired": "red",
    "dropped": "red",
    "held_up": "green",
    "decode_aborted": "green",
    "acknowledged": "green",
}


def _rank_of(life: LifeView) -> str:
    if life.prefill_rank is None:
        return f"process {life.process}"
    return f"prefill rank {life.prefill_rank} of {life.engine} (process {life.process})"


def _end_of(life: LifeView) -> str:
    state = "early, decode came first" if life.is_early else life.state
    ago = "" if life.ended_ago_s is None else f" {life.ended_ago_s:.1f} s ago"
    status = f" ({life.http_status})" if life.http_status else ""
    return f"{state}{ago}" + (f": {life.cause}{status}" if life.cause else "")


def _event_row(event: EventView) -> tuple[str, ...]:
    time_of_day = event.at.partition("T")[2].partition("+")[0]
    return f"    {time_of_day}", f"{event.ago_s:.3f} s", event.endpoint or "-", event.event


def _address(endpoint: EndpointView | LifeEndpointView) -> str:
    return f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"{endpoint.host}:{endpoint.port}"
