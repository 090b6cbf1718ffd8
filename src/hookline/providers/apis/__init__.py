"""The vendors' APIs: how requests are written and replies are parsed."""
