"""Published ways to survive failures, behind the core's own interface.

Knows CheckFreq, Elastic Horovod, SWIFT and FALCON as they were published.
Does not know the core's decisions; the core never imports it.
"""
