"""`relayd mock`: a simulated inference server."""

from relayd.mock.cli import HELP, add_arguments, run

__all__ = ["HELP", "add_arguments", "run"]
