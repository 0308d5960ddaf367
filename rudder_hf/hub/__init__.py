"""The Hub: loading settings and what they name, pipelines, cards, and pushing."""
