"""Kernels that are not in the built set: compiled on demand and kept, or written out as a project of their own."""
