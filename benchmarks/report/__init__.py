"""Reports: metrics, printed tables, pictures and an HTML page."""
