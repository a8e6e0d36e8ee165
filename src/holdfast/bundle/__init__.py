"""A job as files that are known by their content: how it reaches machines that share no disk.

Knows which files a job consists of, how they are packed, sent in pieces, verified and kept.
Does not know what a job does, nor who runs it. What is installed is not sent.
"""
