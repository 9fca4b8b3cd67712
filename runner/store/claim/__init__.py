"""The claims: plain, limited, by tenant and by slice, with the survey before them."""
