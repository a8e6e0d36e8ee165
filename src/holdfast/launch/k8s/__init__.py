"""A run on Kubernetes: the manifests of a JobSet, and what it needs beside.

Knows the kinds of Kubernetes and how a pod learns who it is.
Does not know a cluster: nothing is asked of one, and nothing is sent.
"""
