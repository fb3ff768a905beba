"""Cases: networks, data, and the results to expect."""
