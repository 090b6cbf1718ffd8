"""An HTTP server for any component with routes, and the security checks that every request passes first."""
