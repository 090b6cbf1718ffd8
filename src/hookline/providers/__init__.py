"""Model vendors, each imported only when it is used."""
