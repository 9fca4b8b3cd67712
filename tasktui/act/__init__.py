"""Acting: what an operator can change, how that is asked, carried out, and said elsewhere."""
