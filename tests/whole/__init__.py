"""Black-box tests: a real `relayd serve`, real sockets, scripted upstreams and SDKs nobody adapted."""
