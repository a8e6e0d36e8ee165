"""Published ways to survive failures and slowness, to compare ours with.

They run on the same runtime, behind what ``control/policies.py`` and ``runtime/state_keeping.py``
define; nothing below imports them. The two registries find them by the names of settings.
"""
