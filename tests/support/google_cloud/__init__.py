"""A stand-in of Google Cloud on this machine: the APIs that Ray's cluster launcher calls, and machines that are namespaces.

Requests and answers are held against Google's own discovery documents, which come with google-api-python-client. Ray is not patched: it
finds the stand-in by the names of Google's hosts, and trusts a certificate authority that each test makes.
"""
