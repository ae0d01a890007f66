"""The suite: it mirrors the sources; `whole` and `conformance` look at relayd from outside."""
