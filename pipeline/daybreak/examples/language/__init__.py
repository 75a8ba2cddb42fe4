"""Lines of text: a language model of bytes that follows what people write."""
