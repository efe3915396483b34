"""Compiled kernels for other machines: one as an artifact, several with their tuned choices as a pack."""
