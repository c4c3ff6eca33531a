"""Cut a network in two, and prove that both parts together compute what it did."""
