"""What random samples are drawn from. The same every time unless somebody says so."""

import os
import random

SEED = os.environ.get("HOLDFAST_SEED", "1")


def seed_number(purpose: str = "") -> int:
    """For generators that take no text; another one for each purpose."""
    return random.Random(f"{SEED}-{purpose}").getrandbits(32)
