"""Arithmetic on arrays of NumPy, torch or JAX: no framework is imported here, and noise comes in as arrays."""
