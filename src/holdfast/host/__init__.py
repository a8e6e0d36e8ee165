"""What this machine can do, and what it may be out of for a while.

Knows processors, descriptors and threads of the operating system.
Does not know runs, and loads no torch.
"""
