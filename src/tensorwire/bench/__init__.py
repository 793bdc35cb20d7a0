"""Measurements: Tensorwire against stock grpcio, other libraries and the limits of the host."""
