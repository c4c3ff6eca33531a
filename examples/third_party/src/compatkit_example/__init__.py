"""Two regularizers, a metric and a builder of networks for compatkit, in a package of their own."""
