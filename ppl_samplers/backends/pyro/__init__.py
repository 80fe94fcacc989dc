"""Pyro's contracts: the flat log density of a model, kernels, chains, guides and records."""
