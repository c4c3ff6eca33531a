"""Jobs of matrices and bridges in other processes: what they get, what they answer, and what a killed one costs."""
