"""Obeying: what is commanded after the colon, or chosen from the palette."""
