"""A run on disk: checkpoints with their manifest, boundary logs, and where they lie.

Knows files, checksums and names.
Does not know training: flat sets of tensors in and out.
"""
