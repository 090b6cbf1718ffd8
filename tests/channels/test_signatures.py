"""Signatures require the secret and expire."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline._net.signatures import SignatureError, sign, verify
from tests.properties import examples

NOW = 1_800_000_000
secrets = st.text(st.characters(codec="utf-8"), min_size=16, max_size=40)


@settings(max_examples=examples(60), deadline=None)
@given(secrets, st.binary(max_size=200), st.floats(-299, 299))
def test_a_fresh_signature_is_accepted(secret, body, off):
    verify([secret], sign(secret, body, at=NOW), body, now=NOW + int(off))


@settings(max_examples=examples(60), deadline=None)
@given(secrets, st.binary(max_size=200), st.data())
def test_a_changed_body_time_or_signature_is_rejected(secret, body, data):
    header = sign(secret, body, at=NOW)
    which = data.draw(st.sampled_from(("body", "time", "signature", "secret")))
    if which == "body":
        other = data.draw(st.binary(max_size=200).filter(lambda one: one != body))
        changed = ([secret], header, other)
    elif which == "time":
        later = data.draw(st.integers(-200, 200).filter(bool))
        changed = ([secret], header.replace(f"t={NOW}", f"t={NOW + later}"), body)
    elif which == "signature":
        at = data.draw(st.integers(len(header) - 64, len(header) - 1))
        digit = data.draw(st.sampled_from("0123456789abcdef").filter(lambda one: one != header[at]))
        changed = ([secret], header[:at] + digit + header[at + 1 :], body)
    else:
        changed = ([data.draw(secrets.filter(lambda one: one != secret))], header, body)
    with pytest.raises(SignatureError):
        verify(*changed, now=NOW)


@pytest.mark.parametrize("off", [-301, 301, -100_000, 100_000])
def test_an_old_or_future_signature_is_rejected(off):
    with pytest.raises(SignatureError, match="check the clock"):
        verify(["s" * 16], sign("s" * 16, b"x", at=NOW), b"x", now=NOW + off)


def test_both_secrets_are_accepted_during_a_replacement():
    old, new = "o" * 16, "n" * 16
    for secret in (old, new):
        verify([new, old], sign(secret, b"x", at=NOW), b"x", now=NOW)
    both = sign(old, b"x", at=NOW) + sign(new, b"x", at=NOW).replace(f"t={NOW}", "")
    verify([new], both, b"x", now=NOW)


@settings(max_examples=examples(60), deadline=None)
@given(st.one_of(st.none(), st.text(max_size=80), st.from_regex(r"t=\d{1,20}(,v\d=[0-9a-fA-F]{1,70}){0,7}")))
def test_an_invalid_header_is_rejected(header):
    with pytest.raises(SignatureError):
        verify(["s" * 16], header, b"x", now=NOW)
