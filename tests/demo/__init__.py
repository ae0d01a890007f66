"""`relayd demo`: its client, its judgement, and the command as its user meets it."""
