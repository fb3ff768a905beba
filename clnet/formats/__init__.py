"""Files of networks and of data, chosen by suffix."""
