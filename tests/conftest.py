"""One compute thread, as every worker on a small machine: bits depend on it.

And no instruction that this machine refuses: before any test loads torch.
"""

import os

from holdfast import instruction_set

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
instruction_set.prepare_script()
