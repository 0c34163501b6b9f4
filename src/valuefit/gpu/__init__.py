"""Feature rows, products and moments on a device."""
