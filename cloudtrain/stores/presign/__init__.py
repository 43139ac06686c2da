"""Presigned requests with which nodes upload and download files; a presigner per kind of store."""
