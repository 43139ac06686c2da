"""Presigned requests, by which nodes upload and download files: one presigner per kind of store."""
