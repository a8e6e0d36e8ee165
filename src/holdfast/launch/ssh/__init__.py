"""Agents by the system's ssh: one connection a machine.

Knows the file of hosts, the words of ssh, and what its exit codes mean.
Does not know keys or passwords: ssh has its own.
"""
