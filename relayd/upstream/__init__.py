"""The workers: how they are reached, what they serve, and when they are left alone."""
