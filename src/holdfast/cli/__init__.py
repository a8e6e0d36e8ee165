"""The commands: arguments in, lines and exit codes out.

Knows flags, the terminal and signals; the only place that prints.
Does not know how anything is computed or decided.
"""
