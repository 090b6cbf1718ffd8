"""The APIs that models are asked through: how each writes requests and replies."""
