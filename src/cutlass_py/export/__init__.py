"""Kernels elsewhere: files, packs, and standalone C++."""
