"""Sessions: one request's state on the device, and the table that holds many of them."""
