"""Measuring: kernels against the framework's own matmul on the GPU, host time of a call, and what is made of it.

The rules are in benchmarks/README.md; `python -m cutlass_py bench` is the way in.
"""
