"""Maps between feature spaces, fitted in closed form to sums over paired samples."""
