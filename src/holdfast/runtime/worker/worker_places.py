"""Where a worker keeps and finds the files of its run: at home, or by couriers to the launcher."""

from dataclasses import replace

from holdfast.auth.handshake import COORDINATOR
from holdfast.files.courier import Courier
from holdfast.protocol.spec import WorkerSpec
from holdfast.storage.home import Home
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
        access.generation,
        name=str(spec.worker),
        to_role=COORDINATOR,
        limit_s=spec.config.checkpoint.write_limit_s,
        certificate=access.certificate,
    )
    home = Home.of(spec.run_dir, access.secret, access.generation)
    return replace(places, home=home, courier=courier)
