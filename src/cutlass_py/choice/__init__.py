"""Which kernel computes a problem, and why not another: legality, then measured choices, then estimates."""
