"""The admin port: health and metrics, on an address of its own."""
