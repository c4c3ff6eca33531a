"""Cut a network in two at a split point, and prove that both parts together compute what it did."""
