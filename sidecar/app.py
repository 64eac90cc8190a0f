"""The composition root: builds core and shells, starts them in order, and ends them in order."""

import asyncio
import contextlib
import functools
import random
import resource
import secrets
import signal
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog
import uvloop
import zmq
from prometheus_client import CollectorRegistry

from sidecar.config import Config, Supervision
from sidecar.core.limits import Limits
from sidecar.core.notifier import Notifier
from sidecar.core.outbox import OutboxLimits
from sidecar.core.rooms import RoomLimits
from sidecar.errors import ConfigError
from sidecar.shell import log
from sidecar.shell.driver import Driver
from sidecar.shell.ingress import IngressServer
from sidecar.shell.metrics import SidecarCollector
from sidecar.shell.notify import Supervised, SystemdSocket
from sidecar.shell.pulse import Pulse
from sidecar.shell.push import FROZEN_PEER_LIMIT_S, PushPool
from sidecar.shell.rendezvous import Rendezvous
from sidecar.shell.status import room_document, status_document
from sidecar.wire.kv_status import FORMS

EXIT_NOTHING_OWED = 0
EXIT_OWED = 3

DESCRIPTORS_PER_ENDPOINT = 4
"""A PUSH socket, its connection, and two for the monitor."""

DESCRIPTORS_RESERVED = 256
LINGER_MS = 1000
ACK_DELAY_S = 0.2


def serve(
    config: Config,
    *,
    reread: Callable[[], Config],
    supervision: Supervision = Supervision(),  # noqa: B008 - frozen
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Runs until told to end or out of work. Raises ConfigError and SocketTakenError before serving.

    `reread` gives the settings as they are now, or raises ConfigError: SIGHUP puts the log level among them to use.
    """
    file = _log_file(config.log_file)
    log.configure(level=config.log_level, file=file)
    with Rendezvous(config.socket, group=config.socket_group) as rendezvous:
        reload = functools.partial(_reload, reread, file)
        return uvloop.run(_serve(config, rendezvous, supervision=supervision, on_ready=on_ready, reload=reload))


def _reload(reread: Callable[[], Config], file: log.BoundedFile | None) -> None:
    logger = structlog.get_logger("sidecar")
    try:
        level = reread().log_level
    except ConfigError as error:
        logger.warning("settings not reread", reason=str(error))
        return
    log.configure(level=level, file=file)
    logger.info("settings reread", log_level=level)


def _log_file(path: Path | None) -> log.BoundedFile | None:
    try:
        return log.BoundedFile(path) if path else None
    except OSError as error:
        raise ConfigError(f"--log-file {path} cannot be written: {error.strerror or error}") from error


def connection_budget() -> int:
    """Raises the soft limit of descriptors to the hard one and answers how many endpoints fit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (usable, hard))
    return max(16, (usable * 9 // 10 - DESCRIPTORS_RESERVED) // DESCRIPTORS_PER_ENDPOINT)


async def _serve(
    config: Config,
    rendezvous: Rendezvous,
    *,
    supervision: Supervision,
    on_ready: Callable[[], None],
    reload: Callable[[], None],
) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_report_fault)
    ending = asyncio.Event()
    budget = connection_budget()
    notifier = Notifier(
        epoch=secrets.token_hex(8), limits=_limits(config, budget), jitter=random.random, now=time.monotonic()
    )
    driver = Driver(notifier, loop=loop, clock=time.monotonic, on_retire=ending.set)
    async with contextlib.AsyncExitStack() as stack:
        push = PushPool(driver, context=_zmq_context(stack, budget))
        stack.callback(push.close_all, linger_ms=LINGER_MS)
        ingress = IngressServer(driver, uid=rendezvous.uid, group=config.socket_group)
        driver.attach(push=push, streams=ingress)
        stack.callback(driver.stop)
        pulse = Pulse(loop=loop, clock=time.monotonic)
        pulse.start()
        stack.callback(pulse.stop)
        collector = SidecarCollector(
            notifier=notifier, push=push, ingress=ingress, pulse=pulse, version=version("pd-sidecar")
        )
        await _start_admin(stack, config, notifier=notifier, ingress=ingress, collector=collector)
        _handle_signals(loop, on_end=ending.set, on_reload=reload)
        await ingress.start(rendezvous)
        driver.pump()
        _report_ready(config, epoch=notifier.epoch, budget=budget)
        on_ready()
        supervised = _tell_systemd(stack, supervision, notifier)
        await ending.wait()
        if supervised is not None:
            supervised.begin_shutdown()
        return await _finish(driver, ingress, grace_s=config.grace_s)


def _handle_signals(
    loop: asyncio.AbstractEventLoop, *, on_end: Callable[[], None], on_reload: Callable[[], None]
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_end)
    if not sys.stderr.isatty():  # at a terminal SIGHUP means that the terminal is gone
        loop.add_signal_handler(signal.SIGHUP, on_reload)


def _tell_systemd(stack: contextlib.AsyncExitStack, supervision: Supervision, notifier: Notifier) -> Supervised | None:
    if supervision.notify_socket is None:
        return None
    supervised = Supervised(
        SystemdSocket(supervision.notify_socket),
        loop=asyncio.get_running_loop(),
        status=lambda: f"ranks: {len(notifier.ranks.connected)}, notices owed: {len(notifier.outbox)}",
        watchdog_s=supervision.watchdog_s,
    )
    stack.callback(supervised.stop)
    if not supervised.start():
        structlog.get_logger("sidecar").warning("systemd not told", notify_socket=supervision.notify_socket)
    return supervised


def _report_ready(config: Config, *, epoch: str, budget: int) -> None:
    logger = structlog.get_logger("sidecar")
    if config.settle_after_s < FROZEN_PEER_LIMIT_S:
        logger.warning(
            "settles before a frozen peer is found out",
            settle_after_s=config.settle_after_s,
            frozen_peer_limit_s=FROZEN_PEER_LIMIT_S,
        )
    logger.info("ready", socket=str(config.socket), epoch=epoch, connection_budget=budget)


def _report_fault(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A bug here or in a library: loud, and the stream or timer it happened in is all that it costs."""
    structlog.get_logger("sidecar").error("fault", text=context["message"], exc_info=context.get("exception"))


async def _finish(driver: Driver, ingress: IngressServer, *, grace_s: float) -> int:
    notifier = driver.notifier
    driver.begin_shutdown()
    ingress.stop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s):
            await driver.idle()
    pending = notifier.outbox.pending
    report = structlog.get_logger("sidecar").warning if pending else structlog.get_logger("sidecar").info
    report("ending", still_owed=pending, handed_off_unsettled=len(notifier.outbox) - pending)
    return EXIT_OWED if pending else EXIT_NOTHING_OWED


def _limits(config: Config, budget: int) -> Limits:
    return Limits(
        rooms=RoomLimits(records=config.record_limit),
        outbox=OutboxLimits(settle_after_s=config.settle_after_s, idle_close_s=config.idle_close_s, connections=budget),
        idle_exit_s=config.idle_exit_s,
        ack_delay_s=ACK_DELAY_S,
        backends=frozenset(FORMS),
    )


def _zmq_context(stack: contextlib.AsyncExitStack, budget: int) -> "zmq.Context[zmq.Socket[bytes]]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    context.set(zmq.MAX_SOCKETS, min(65_535, 2 * budget + 64))
    stack.callback(context.term)
    return context


async def _start_admin(
    stack: contextlib.AsyncExitStack,
    config: Config,
    *,
    notifier: Notifier,
    ingress: IngressServer,
    collector: SidecarCollector,
) -> None:
    if config.admin is None:
        return
    from sidecar.shell.admin import AdminServer  # noqa: PLC0415 - aiohttp is two thirds of the start-up time

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    admin = AdminServer(
        registry=registry,
        is_ready=lambda: ingress.is_serving,
        status=lambda: status_document(notifier, now=time.monotonic()),
        trace=lambda room: room_document(notifier, room, now=time.monotonic()),
    )
    host, port = config.admin
    try:
        served = await admin.start(host, port)
    except OSError as error:
        reason = f"--admin {host}:{port} cannot be served: {error.strerror or error}"
        if not config.idle_exit_s:
            raise ConfigError(f"{reason}; choose another port or off") from error
        structlog.get_logger("sidecar").warning("no admin server", reason=reason)
        return
    stack.push_async_callback(admin.stop)
    structlog.get_logger("sidecar").info("admin server", host=host, port=served)
