"""Faults, kills and signals."""
