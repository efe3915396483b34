"""The operations: a room each, with its arguments, what it can compute, what that costs, and its reference in NumPy."""
