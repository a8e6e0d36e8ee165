"""The order of an epoch's samples, computed place by place: nothing of it is stored.

A keyed permutation (a Feistel network) of the numbers below a power of four; a number that is no
sample is followed until one comes, three times on average at most.
"""

from hashlib import blake2b

_ROUNDS = 8
_FEW = 256  # a network of such small numbers mixes badly


class SampleOrder:
    """``order[place]`` is a sample; every sample has one place."""

    def __init__(self, num_samples: int, key: int) -> None:
        self._num_samples = num_samples
        self._half = ((num_samples - 1).bit_length() + 1) // 2
        self._mask = (1 << self._half) - 1
        self._rounds = [
            blake2b(key=key.to_bytes(8, "little"), salt=bytes([number]), digest_size=8)
            for number in range(_ROUNDS)
        ]
        few = range(num_samples) if num_samples <= _FEW else ()
        self._few = sorted(few, key=lambda sample: self._drawn(0, sample))

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self._num_samples:
            raise IndexError(f"place {place} of {self._num_samples} samples")
        if self._few:
            return self._few[place]
        found = self._mixed(place)
        while found >= self._num_samples:
            found = self._mixed(found)
        return found

    def _mixed(self, number: int) -> int:
        left, right = number >> self._half, number & self._mask
        for number_of_round in range(_ROUNDS):
            left, right = right, left ^ self._drawn(number_of_round, right) & self._mask
        return left << self._half | right

    def _drawn(self, number_of_round: int, number: int) -> int:
        drawing = self._rounds[number_of_round].copy()
        drawing.update(number.to_bytes(8, "little"))
        return int.from_bytes(drawing.digest(), "little")
