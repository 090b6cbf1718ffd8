"""Models of vendors. Each vendor's package is imported only when it is used."""
