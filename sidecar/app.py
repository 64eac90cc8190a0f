"""The composition root: builds core and shells, starts them in order, and ends them in order."""

import asyncio
import contextlib
import functools
import importlib
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import structlog
import uvloop
import zmq
from msgspec import Struct

from sidecar.config import Config, Supervision
from sidecar.core.notifier import Notifier
from sidecar.errors import ConfigError
from sidecar.reload import Settings, limits_of
from sidecar.shell import descriptors, log
from sidecar.shell.descriptors import DescriptorBudget
from sidecar.shell.driver import Driver
from sidecar.shell.garbage import spare_the_living
from sidecar.shell.ingress import LOOK_S, IngressServer
from sidecar.shell.life_log import LifeLog
from sidecar.shell.link import FROZEN_PEER_LIMIT_S
from sidecar.shell.notify import Supervised, SystemdSocket
from sidecar.shell.pulse import Pulse
from sidecar.shell.push import PushPool
from sidecar.shell.rendezvous import Rendezvous
from sidecar.shell.scheduling import yield_to_others
from sidecar.tracing import Tracing

EXIT_NOTHING_OWED = 0
EXIT_OWED = 3

LINGER_MS = 1000


class Service(Struct, frozen=True, kw_only=True):
    """What serves, once it is put together."""

    settings: Settings
    budget: DescriptorBudget
    notifier: Notifier
    driver: Driver
    push: PushPool
    ingress: IngressServer
    pulse: Pulse
    repeats: log.Repeats
    tracing: Tracing


def serve(
    config: Config,
    *,
    reread: Callable[[], Config],
    supervision: Supervision = Supervision(),  # noqa: B008 - frozen
    on_ready: Callable[[], None] = lambda: None,
) -> int:
    """Runs until told to end or out of work. Raises SocketTakenError before serving, ConfigError before it is ready.

    `reread` gives the settings as they are now, or raises ConfigError: SIGHUP puts those to use that can change.
    """
    file = _log_file(config.log_file)
    repeats = log.Repeats()
    set_level = functools.partial(_set_level, file=file, repeats=repeats)
    set_level(config.log_level)
    settings = Settings(config, reread=reread, set_level=set_level)
    if config.scheduling == "batch":
        yield_to_others()
    with Rendezvous(config.socket, group=config.socket_group) as rendezvous:
        return uvloop.run(_serve(settings, rendezvous, repeats, supervision=supervision, on_ready=on_ready))


def _set_level(level: str, *, file: log.BoundedFile | None, repeats: log.Repeats) -> None:
    log.configure(level=level, file=file, repeats=repeats)


def _log_file(path: Path | None) -> log.BoundedFile | None:
    try:
        return log.BoundedFile(path) if path else None
    except OSError as error:
        raise ConfigError(f"--log-file {path} cannot be written: {error.strerror or error}") from error


async def _serve(
    settings: Settings,
    rendezvous: Rendezvous,
    repeats: log.Repeats,
    *,
    supervision: Supervision,
    on_ready: Callable[[], None],
) -> int:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log.report_fault)
    ending = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        service = _put_together(stack, settings, rendezvous, repeats, on_end=ending.set)
        supervised: Supervised | None = None
        _handle_signals(loop, on_end=ending.set, on_reload=lambda: _reload(service, supervised))
        await service.ingress.start(rendezvous)
        service.driver.pump()
        if settings.now.idle_exit_s:  # an engine waits, for its ranks to be served and for nothing else
            on_ready()
        await _start_admin(stack, service)
        _report_ready(service)
        spare_the_living()
        if not settings.now.idle_exit_s:
            on_ready()
        supervised = _tell_systemd(stack, supervision, service)
        await ending.wait()
        if supervised is not None:
            supervised.begin_shutdown()
        return await _finish(service)


def _put_together(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    rendezvous: Rendezvous,
    repeats: log.Repeats,
    *,
    on_end: Callable[[], None],
) -> Service:
    loop = asyncio.get_running_loop()
    budget = descriptors.claim()
    limits = limits_of(settings.now, connections=budget.connections)
    notifier = Notifier(epoch=secrets.token_hex(8), limits=limits, jitter=random.random, now=time.monotonic())
    life_log = LifeLog(notifier, repeats)
    driver = Driver(notifier, loop=loop, clock=time.monotonic, on_retire=on_end, on_finished=life_log.report)
    tracing = Tracing.start(settings.now, driver, loop=loop)
    stack.push_async_callback(tracing.stop)
    push = PushPool(driver, context=_zmq_context(stack, budget))
    stack.callback(push.close_all, linger_ms=LINGER_MS)
    ingress = IngressServer(driver, uid=rendezvous.uid, group=settings.now.socket_group, stream_limit=budget.streams)
    driver.attach(push=push, streams=ingress)
    stack.callback(driver.stop)
    every = {log.WINDOW_S: repeats.roll_over, LOOK_S: lambda: ingress.look_after(rendezvous)}
    pulse = Pulse(loop=loop, clock=time.monotonic, every=every, on_stall=driver.stalled)
    pulse.start()
    stack.callback(repeats.roll_over)
    stack.callback(pulse.stop)
    return Service(
        settings=settings,
        budget=budget,
        notifier=notifier,
        driver=driver,
        push=push,
        ingress=ingress,
        pulse=pulse,
        repeats=repeats,
        tracing=tracing,
    )


def _reload(service: Service, supervised: Supervised | None) -> None:
    if supervised is not None:
        supervised.begin_reload(monotonic_us=time.monotonic_ns() // 1000)
    service.settings.reload(functools.partial(_apply, service))
    if supervised is not None:
        supervised.end_reload()


def _apply(service: Service, config: Config) -> None:
    service.notifier.change_limits(limits_of(config, connections=service.budget.connections))
    service.driver.log_changed()
    service.driver.pump()


def _handle_signals(
    loop: asyncio.AbstractEventLoop, *, on_end: Callable[[], None], on_reload: Callable[[], None]
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_end)
    if not sys.stderr.isatty():  # at a terminal SIGHUP means that the terminal is gone
        loop.add_signal_handler(signal.SIGHUP, on_reload)


def _tell_systemd(stack: contextlib.AsyncExitStack, supervision: Supervision, service: Service) -> Supervised | None:
    if supervision.notify_socket is None:
        return None
    notifier = service.notifier
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


def _report_ready(service: Service) -> None:
    logger, config, budget = structlog.get_logger("sidecar"), service.settings.now, service.budget
    if config.settle_after_s < FROZEN_PEER_LIMIT_S:
        logger.warning(
            "settles before a frozen peer is found out",
            settle_after_s=config.settle_after_s,
            frozen_peer_limit_s=FROZEN_PEER_LIMIT_S,
        )
    logger.info(
        "ready",
        socket=str(config.socket),
        epoch=service.notifier.epoch,
        descriptors=budget.limit,
        connection_budget=budget.connections,
        stream_budget=budget.streams,
    )


async def _finish(service: Service) -> int:
    notifier = service.notifier
    service.ingress.catch_up()
    await service.ingress.hear_out_the_dead()
    service.driver.begin_shutdown()
    service.ingress.stop()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(service.settings.now.grace_s):
            await service.driver.idle()
    pending = notifier.outbox.pending
    report = structlog.get_logger("sidecar").warning if pending else structlog.get_logger("sidecar").info
    report("ending", still_owed=pending, handed_off_unsettled=len(notifier.outbox) - pending)
    return EXIT_NOTHING_OWED if notifier.is_idle else EXIT_OWED


def _zmq_context(stack: contextlib.AsyncExitStack, budget: DescriptorBudget) -> "zmq.Context[zmq.Socket[bytes]]":
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    context.set(zmq.MAX_SOCKETS, budget.zmq_sockets)
    stack.callback(context.term)
    return context


async def _start_admin(stack: contextlib.AsyncExitStack, service: Service) -> None:
    config = service.settings.now
    if config.admin is None:
        return
    # aiohttp and prometheus_client are half of what there is to load. Ranks are served meanwhile.
    operators = await asyncio.to_thread(importlib.import_module, "sidecar.operators")
    admin = operators.make_admin(service)
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
