"""What all engines of one framework share: densities, kernels, guides; below them flows, moves and training."""
