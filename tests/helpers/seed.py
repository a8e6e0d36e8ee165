"""What random samples are drawn from. The same every time unless somebody says so."""

import os

SEED = os.environ.get("HOLDFAST_SEED", "1")
