"""Models as users write them, each in NumPyro and in Pyro, with data and reference. See ``models/load.py``."""
