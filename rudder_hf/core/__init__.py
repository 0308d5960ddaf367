"""RUDDER itself: the paper's equations, one generation, and the hooks on the model."""
