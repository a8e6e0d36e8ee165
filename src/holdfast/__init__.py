"""Training on machines that fail."""
