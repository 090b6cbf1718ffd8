"""Channel that exchanges signed JSON messages with other programs over HTTP."""
