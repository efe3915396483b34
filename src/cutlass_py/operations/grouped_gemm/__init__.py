"""Products of unequal size: groups of rows, of columns or of k. Kernels, legality and formulas are gemm's."""
