"""Kernels as objects: what each says of itself, which there are, and descriptions of further ones."""
