"""A regularizer and a metric for compatkit, in a package of their own."""
