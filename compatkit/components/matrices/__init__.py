"""A matrix as a question: which components and cells, what is known of them, and what is to be measured."""
