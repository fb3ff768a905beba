"""Times of variants on devices: measured once (`measure`), remembered (`store`)."""
