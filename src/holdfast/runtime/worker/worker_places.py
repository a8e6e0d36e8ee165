"""Where a worker keeps and finds the files of its run: at home, or by couriers to the launcher."""

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from holdfast.auth.handshake import COORDINATOR
from holdfast.files.courier import Courier
from holdfast.files.file_service import FileService
from holdfast.protocol.spec import Access, WorkerSpec
from holdfast.storage.home import Home
from holdfast.storage.log.log_shelf import LogShelf
from holdfast.storage.places import Places


def places_of(
    spec: WorkerSpec, now_at: Callable[[], Access | None] = lambda: None, *, is_process: bool
) -> Places:
    """A thread of the launcher's process is at home. ``now_at``: who leads by now; None: the one
    that it was started by."""
    places = Places.of(spec.run_dir, spec.resumed, spec.config)
    if not is_process:
        return places
    access = spec.access
    courier = Courier(
        access.host,
        access.port,
        access.secret,
        spec.first_launch,
        name=str(spec.worker),
        to_role=COORDINATOR,
        limit_s=spec.config.checkpoint.write_limit_s,
        dial=partial(_called, lambda: now_at() or access),
        tls=bool(access.certificate),
        certificate="" if access.more else access.certificate,  # a standby has its own
    )
    home = Home.of(spec.run_dir, access.secret, spec.first_launch)
    return replace(places, home=home, courier=courier)


def _called(now_at: Callable[[], Access], at: tuple[str, int], limit_s: float) -> socket.socket:
    """Whoever leads the run, instead of who did at the start."""
    access = now_at()
    return socket.create_connection((access.host, access.port), limit_s)


def log_service(spec: WorkerSpec) -> FileService:
    """Serves all logs of the run on this machine, also those of workers that are gone."""
    places = places_of(spec, is_process=True)
    return FileService(LogShelf(places.log_roots).answer, spec.first_launch)
