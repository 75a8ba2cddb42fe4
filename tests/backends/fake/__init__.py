"""The services of Vertex AI on loopback, one module each; fake_vertex.py puts them together."""
