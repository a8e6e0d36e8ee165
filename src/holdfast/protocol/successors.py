"""How a worker finds the coordinator that has taken over from the one it has lost.

It knows its run by the secret, and a successor by a higher generation. Whoever is of the same
generation has not died: it has hung up, and has given this worker up.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.addresses import parse_host_port
from holdfast.auth.handshake import JOINER
from holdfast.errors import ConfigError, HoldfastError
from holdfast.protocol.connection import Connection, connect
from holdfast.protocol.spec import ADDRESS_FILE, Access

PAUSE_S = 0.2
SILENCE_S = 5.0  # of a coordinator that gives a sign every second
_TRY_LIMIT_S = 2.0  # for all addresses: they are asked at once
_MOST_BYTES = 1000


class GivenUp(HoldfastError):
    """By a coordinator that lives, or nobody has taken over in time."""


@dataclass
class Successors:
    """``role``, ``name``: of who looks for one. ``run_dir``: where its address may be told."""

    access: Access
    role: str
    name: str
    run_dir: str
    limit_s: float  # 0: nobody is looked for
    silence_limit_s: float

    def find(self, has_ended: Callable[[], bool]) -> Connection:
        """GivenUp: there is none. Waits for one as long as it may."""
        until_s = time.monotonic() + self.limit_s
        while time.monotonic() < until_s and not has_ended():
            found = self.look()
            if found is not None:
                return found
            time.sleep(PAUSE_S)
        raise GivenUp(f"no coordinator has taken over within {self.limit_s:g} s")

    def look(self, *, is_alive: bool = False, elsewhere: bool = False) -> Connection | None:
        """Once, at every address. GivenUp: ours is there, and does not talk to us any more.

        ``is_alive``: ours may well be there, and be the only one. ``elsewhere``: it is not asked.
        """
        places = [at for at in self._places() if not elsewhere or str(at) != str(self.access)]
        found = self._generations_at(places)
        for access, generation in zip(places, found, strict=True):
            if generation is not None and generation > self.access.generation:
                with suppress(HoldfastError, OSError):
                    return self._connected(access, generation)
        if self.access.generation in found and not is_alive:
            raise GivenUp("the coordinator has given this process up")
        return None

    def _generations_at(self, places: Sequence[Access]) -> list[int | None]:
        """None: nobody is there, or somebody else.

        A host that is down answers nothing, so none waits for another. No thread stays: an agent
        forks.
        """
        found: list[int | None] = [None] * len(places)

        def ask(number: int) -> None:
            with suppress(HoldfastError, OSError):
                found[number] = self._generation_at(places[number])

        numbers = range(len(places))
        threads = [threading.Thread(target=ask, args=(each,), name="look") for each in numbers]
        for number, thread in zip(numbers, threads, strict=True):
            try:
                thread.start()
            except RuntimeError:  # no thread to be had
                ask(number)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        return found

    def _generation_at(self, access: Access) -> int:
        """Asked as one who knows of none: that takes nobody's place."""
        asks = replace(access, generation=0)
        name = self.name if self.role != "agent" else ""
        connection, generation = connect(asks, JOINER, name, _TRY_LIMIT_S)
        connection.close()
        return generation

    def _connected(self, access: Access, generation: int) -> Connection:
        limit_s = self.silence_limit_s
        connection, _ = connect(access, self.role, self.name, _TRY_LIMIT_S, silence_limit_s=limit_s)
        self.access = replace(access, generation=generation, more=self.access.all_known)
        return connection

    def _places(self) -> list[Access]:
        """Where it was, and where others may be."""
        found = self.access.places()
        with suppress(ConfigError):
            host, port = parse_host_port(_told_in(self.run_dir), "an address of the run")
            found.append(replace(self.access, host=host, port=port))
        return list(dict.fromkeys(found))


def _told_in(run_dir: str) -> str:
    """On the coordinator's own machine."""
    if not run_dir:
        return ""
    try:
        with (Path(run_dir) / ADDRESS_FILE).open() as file:
            return file.read(_MOST_BYTES).strip()
    except (OSError, ValueError):
        return ""
