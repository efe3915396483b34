"""What every room may use: files on disk, what a person watches on a terminal, versions."""
