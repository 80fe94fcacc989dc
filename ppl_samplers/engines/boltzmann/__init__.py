"""Boltzmann generators: a normalizing flow trained on energies and on examples, corrected exactly by its weights."""
