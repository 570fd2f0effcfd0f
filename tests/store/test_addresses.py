from ragrl_jax.store.addresses import everywhere, without_credentials


def test_addresses_are_shown_without_credentials():
  for text, shown in [
    ("http://me:s3cret@host:80/v1", "http://host:80/v1"), ("https://s3cret@host", "https://host"),
    ("http://me:s3@cret@[::1]/v1?a=b@c", "http://[::1]/v1?a=b@c"), ("http://host/a@b", "http://host/a@b"),
    ("milvus:http://me:s3cret@h:1/a?encoder=o/e5&token=s3cret", "milvus:http://h:1/a?encoder=o/e5"),
    ("from http://me:s3cret@one/ and ftp://s3cret@two: a@b", "from http://one/ and ftp://two: a@b"),
    ('{"index": "http://me:s3cret@host", "mail": "a@b"}', '{"index": "http://host", "mail": "a@b"}'),
    ('{"index": "http://host", "mail": "a@b"}', '{"index": "http://host", "mail": "a@b"}'),
    ("http://host/retrieve?api_key=s3cret", "http://host/retrieve"),
    ("http://host/v1?top=3&access_token=s3cret&x=a@b#frag", "http://host/v1?top=3&x=a@b#frag"),
    ("http://a?X-Amz-Signature=s3cret,http://b/v1?sig=s3%20cret&k=2", "http://a,http://b/v1?k=2"),
    ("('http://host/?Password=s3,cret#token=s3cret', 3)", "('http://host/', 3)"),
    ("http://host/v1?question=why&k=3 ?key=shown", "http://host/v1?question=why&k=3 ?key=shown"),
    ("http://h/x?url=http://g?token=s3cret&b=2", "http://h/x?url=http://g?b=2"),
    ("http://h/x?author=me&design=2&keyword=k&postcode=9", "http://h/x?author=me&design=2&keyword=k&postcode=9"),
    ("hf:name/subset/split", "hf:name/subset/split"), ("", ""), ("a1" * 100_000, "a1" * 100_000),  # in linear time
    ("1http://me:s3cret@host, xhttp://me:s3cret@host", "1http://host, xhttp://host"),
  ]:  # fmt: skip
    assert without_credentials(text) == shown
  told = dict(a=["http://me:s3cret@host", dict(b=("http://host?key=s3cret", 3, None))])  # anywhere in a value
  assert everywhere(told) == dict(a=["http://host", dict(b=["http://host", 3, None])])


SECRET = """
key keys key1 api_key apiKey APIKey apikey APIKEY api.key x[api_key] api%5Fkey x-api-key accesskey AWSAccessKeyId
Key-Pair-Id openaikey authkey subscription-key keypair keyfile token tokens access_token accessToken accesstoken
authtoken oauth2token X-Amz-Security-Token author_token csrftoken secret client_secret clientsecret password passwd
PassWord dbpassword pwd userpwd sig sig2 urlsig sigv4 sign signed signed_request X-Amz-Signature oauth_signature
signingkey auth oauth authz Authorization authorise authenticated basicauth authcode cred creds dbcred X-Amz-Credential
code auth_code passcode accesscode userCode codeverifier code_verifier session sessionId JSESSIONID jwt bearer
bearertoken smscode mfacode tfacode totpcode twofactorcode recoverycode backupcode emailcode verifycode magiccode
tokencode codechallenge sigdata sighash requestsign
"""
ORDINARY = """
author authors authority co-author coauthor author_id design assigned signal significant insight sigma signup keyword
keywords keyboard keyspace monkey turkey postcode zipcode barcode countrycode areacode langcode unicode encoder decode
codec tokenizer tokenization max_tokens maxTokens max_new_tokens secretary credit sacred incredible possession k top_k
"""


def test_words_of_a_name_tell_what_is_secret():
  shown = lambda name: without_credentials(f"http://host/x?{name}=value")
  assert [name for name in SECRET.split() if shown(name) != "http://host/x"] == []
  assert [name for name in ORDINARY.split() if shown(name) != f"http://host/x?{name}=value"] == []
