"""PyTorch training whose result does not depend on who ran what."""
