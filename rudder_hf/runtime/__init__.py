"""What every command shares: loading a model, encoding images and prompts, storing results."""
