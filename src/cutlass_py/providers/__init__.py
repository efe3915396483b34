"""Where kernels come from besides the library built with the package."""
