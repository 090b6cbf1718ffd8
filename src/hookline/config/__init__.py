"""Settings of a program that runs agents: where they come from, and what is built from them."""
