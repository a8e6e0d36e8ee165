"""What the sweeps of kills and slowness share."""
