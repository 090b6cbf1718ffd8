"""HTTP requests to allowed hosts only, and strict parsing of URLs. Tools, channels and the server use it."""
