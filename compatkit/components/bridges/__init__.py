"""The ladder of bridges: parts that were never trained to fit, brought together step by step."""
