"""The simulated inference server: `relayd mock`, or `MockServer` inside a program.

It imports nothing from the rest of relayd.
"""

from relayd.mock.server import MockServer, Settings

__all__ = ["MockServer", "Settings"]
