"""Models: converting PyG's layers, and what their functions mean on shared rows."""
