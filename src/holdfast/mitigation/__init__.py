"""Which option to take against slowness, and whether it has helped.

Knows predicted and measured step times, and costs.
Does not know workers, plans or how an option is carried out.
"""
