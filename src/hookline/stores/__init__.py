"""What outlives a program: sessions."""
