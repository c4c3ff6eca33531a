"""What makes foreign things fit: networks of other libraries, cut into parts that can be rebuilt without code."""
