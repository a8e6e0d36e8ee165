"""Somebody between two ends of a connection, who passes on their proofs."""

import socket

_NUM_BYTES = (58, 90, 37)  # of the three messages of a handshake: from the caller, to it, from it


def pass_on_handshake(caller: socket.socket, answerer: socket.socket) -> None:
    for number, num_bytes in enumerate(_NUM_BYTES):
        source, to = (answerer, caller) if number == 1 else (caller, answerer)
        data = source.recv(num_bytes, socket.MSG_WAITALL)
        assert len(data) == num_bytes, "the handshake was broken off"
        to.sendall(data)
