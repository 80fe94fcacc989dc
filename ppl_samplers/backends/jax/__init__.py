"""Arrays in JAX's idiom: flows, training, moves and the pilot run, as pure functions; nothing of NumPyro in it."""
