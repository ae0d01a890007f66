"""What relayd tells of itself: metrics and the access log."""
