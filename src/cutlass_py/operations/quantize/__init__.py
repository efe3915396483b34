"""Quantizing: a tensor in 8 bits, and the factors that undo it."""
