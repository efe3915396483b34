"""The product of matrices with everything that may happen to it before it is stored."""
