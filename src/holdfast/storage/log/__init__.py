"""The boundary log: frames in segments, written by one worker, read by any.

Knows frames, files and checksums.
Does not know what is logged, or what a gap means.
"""
