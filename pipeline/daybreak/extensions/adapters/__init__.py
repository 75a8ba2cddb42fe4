"""Takes models that were written for another trainer: of Lightning, and of Hugging Face's transformers."""
