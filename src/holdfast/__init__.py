"""PyTorch training whose result does not depend on who ran what."""

__version__ = "0.2.0"
