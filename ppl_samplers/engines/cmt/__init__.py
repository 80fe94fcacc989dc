"""CMT: constrained mass transport."""
