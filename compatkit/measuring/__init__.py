"""What layers of networks give, and how it compares: metrics, activations, similarity."""
