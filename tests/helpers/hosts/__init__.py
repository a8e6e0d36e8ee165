"""Several machines on one: each has its own network card, name, processes, clock and /tmp.

Knows namespaces of Linux, a virtual switch and its cables; needs no root.
Does not know Holdfast.

    with hosts(4) as (a, b, c, d):
        server = a.start(["python3", "-m", "http.server", "80"], into=tmp_path)
        b.run(["curl", f"http://{a.name}"])
        a.network.partition([a, b], [c, d])
        d.power_off()
"""

from helpers.hosts.host import Host, Program
from helpers.hosts.network import Network, hosts, why_not

__all__ = ["Host", "Network", "Program", "hosts", "why_not"]
