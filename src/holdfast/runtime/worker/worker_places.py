"""Where a worker keeps and finds the files of its run: at home, or by couriers to the launcher."""

import threading
from contextlib import suppress
from dataclasses import replace

from holdfast.auth.handshake import COORDINATOR
from holdfast.files.courier import Courier
from holdfast.files.file_service import FileService
from holdfast.protocol import messages
from holdfast.protocol.spec import WorkerSpec
from holdfast.storage.home import Home
from holdfast.storage.log.log_shelf import LogShelf
from holdfast.storage.places import Places


def places_of(spec: WorkerSpec, *, is_process: bool) -> Places:
    """A thread of the launcher's process is at home."""
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
        tls=bool(access.certificate),
        certificate=access.certificate,
    )
    home = Home.of(spec.run_dir, access.secret, spec.first_launch)
    return replace(places, home=home, courier=courier)


def log_service(spec: WorkerSpec) -> FileService:
    """Serves all logs of the run on this machine, also those of workers that are gone."""
    places = places_of(spec, is_process=True)
    return FileService(LogShelf(places.log_roots).answer, spec.first_launch)


def tidy_aside(places: Places, order: messages.TidyLogs) -> None:
    """In a thread of its own: disks are slow, and whoever hears of it has other things to do."""
    given = (order.run, order.step, order.gone)
    with suppress(RuntimeError):  # no thread to be had: the next checkpoint says it again
        threading.Thread(target=places.tidy_logs, args=given, name="tidy", daemon=True).start()
