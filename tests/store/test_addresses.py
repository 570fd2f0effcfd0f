"""Credentials in an address are never shown."""

from ragrl_jax.store.addresses import without_credentials


def test_addresses_are_shown_without_credentials():
  for text, shown in [
    ("http://me:s3cret@host:80/v1", "http://host:80/v1"),
    ("https://s3cret@host", "https://host"),
    ("http://me:s3@cret@[::1]/v1?a=b@c", "http://[::1]/v1?a=b@c"),
    ("http://host/a@b", "http://host/a@b"),
    ("from http://me:s3cret@one/ and ftp://s3cret@two: a@b", "from http://one/ and ftp://two: a@b"),
    ('{"index": "http://me:s3cret@host", "mail": "a@b"}', '{"index": "http://host", "mail": "a@b"}'),
    ('{"index": "http://host", "mail": "a@b"}', '{"index": "http://host", "mail": "a@b"}'),
    ("hf:name/subset/split", "hf:name/subset/split"),
    ("", ""),
  ]:
    assert without_credentials(text) == shown
