"""What kernels there can be: dtypes, epilogues, families, and the C++ of each.

CMake reads these modules before the package exists, so they import the standard library and each other only.
"""
