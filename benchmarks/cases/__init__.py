"""Cases: networks, data, and expected results."""
