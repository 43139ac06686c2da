"""Presigned requests with which nodes upload and download files; one presigner per kind
of store.
"""
