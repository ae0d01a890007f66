"""How much somebody may ask for."""
