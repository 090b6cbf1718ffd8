"""The modules outside the kernel that declare points, in the order of the table. The package root fills the list."""

POINT_MODULES: list[str] = []
