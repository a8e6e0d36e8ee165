"""What agents say, by hand."""

from holdfast.protocol.messages import AgentHello


def agent_hello(pid: int = 5, machine: str = "m0", slots: int = 8) -> AgentHello:
    return AgentHello(machine=machine, slots=slots, memory_bytes=0, pid=pid, fingerprint={})
