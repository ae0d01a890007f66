"""The phases of a request, in order, and the driver that takes it through them."""
