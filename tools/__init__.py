"""Programs that make what is in the repository: embedded models, model cards."""
