"""What the suite's tests stand on: scripted upstreams, a raw client, a gateway in a subprocess."""
