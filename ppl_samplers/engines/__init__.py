"""The engines, one folder per family: equations in ``maths.py``, NumPyro and Pyro beside it."""
