"""Readers of file formats: bytes or a path in, arrays out, and an error that names the file if it is damaged."""
