"""How bytes become an array: decoding, and the image steps."""
