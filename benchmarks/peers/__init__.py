"""Other people's samplers on our targets, beside our engines: ``make bench-peers``."""
