"""What agents say, by hand."""

from holdfast.protocol.messages import AgentHello


def agent_hello(pid: int = 5, machine: str = "m0", slots: int = 8) -> AgentHello:
    what = {"memory_bytes": 0, "devices": ["cpu"], "fingerprint": {}}
    return AgentHello(machine=machine, slots=slots, pid=pid, **what)
