"""How a worker is chosen: one file a policy, found by the name that settings use."""
