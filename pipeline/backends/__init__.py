"""Where jobs run: this machine, and Vertex AI."""
