"""From a problem to the kernel that computes it: candidates, measured choices, and the reasons."""
