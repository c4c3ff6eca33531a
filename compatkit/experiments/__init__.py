"""Many runs: recipes, sweeps, studies, the demo."""
