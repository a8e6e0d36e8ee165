"""What a training job costs: seconds of its operations, bytes of its state.

Knows models of the papers, GPUs, and what a run of ours has measured.
Does not know failures.
"""
