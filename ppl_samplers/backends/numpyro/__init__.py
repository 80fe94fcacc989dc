"""NumPyro's contracts: the density of a model, the MCMC kernel, the guide, and the record of a run."""
