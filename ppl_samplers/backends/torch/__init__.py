"""Flows, training, moves and the pilot run in torch's idiom; nothing of Pyro in it."""
