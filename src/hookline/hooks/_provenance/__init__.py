"""The parts of ProvenanceGuard: where values came from, and what the user asked for.

Written by hand, because the rules need the structure of tool results and the declared effects of tools. The published
systems (CaMeL, FIDES) replace the agent loop by an interpreter of their own, and have no package to build on.
"""
