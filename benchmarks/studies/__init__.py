"""Studies: trials, and the tables and pictures of their rows."""
