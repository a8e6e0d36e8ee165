"""A device that is not there, for machines without one: "far:0", with the bits of the processor.

Whoever forgets a transfer fails here as on a GPU: tensors of both sides do not mix, numpy and
transports refuse them, and device memory has addresses that cannot be read. Copies that do not
block are late: they are made when somebody waits for them. The device has its own random
numbers, and autograd its own thread.
"""

from helpers.far_device.installing import KIND, install, why_not
from helpers.far_device.module import FAR

__all__ = ["FAR", "KIND", "install", "why_not"]
