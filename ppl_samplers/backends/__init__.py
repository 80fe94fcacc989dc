"""What every engine of one framework shares: densities, kernels, guides (by framework), flows and training (by array library)."""
