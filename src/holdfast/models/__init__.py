"""Small models for examples and emulated devices.

Knows torch layers and a text to train on.
Does not know stages, workers or runs.
"""
