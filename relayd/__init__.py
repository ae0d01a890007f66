"""relayd: one address in front of many inference servers."""

__version__ = "0.1.0"
