"""Secrets in settings are masked."""

import pytest

from hookline.config.secrets import mask
from hookline.config.settings import DeclaredHook
from tests.cases import each_case


@each_case(
    "secret",
    [
        {"api_key": "hunter2"},
        {"headers": {"Authorization": "Bearer hunter2"}},
        {"tokens": ["hunter2"]},
        "https://me:hunter2@example.org/v1",
        "https://example.org/v1?api_key=hunter2&x=1",
        ("server --token hunter2", "server --api-key=hunter2"),
        "sk-hunter2hunter2",
        'server --header "Authorization: Bearer hunter2"',
        "server --header 'authorization: Custom hunter2 hunter2' --port 3",
        "server -H Authorization=hunter2",
        "server --header x-api-key:hunter2",
        "server --header 'X-Auth-Token: hunter2'",
        'server --headers \'{"x-api-key": "hunter2 hunter2"}\'',
        "server --header 'Cookie: id=1; session=hunter2'",
        'server --password "one hunter2"',
        "server --token one,hunter2",
        "https://example.org/mcp?code=hunter2",
        "https://example.org/mcp?x=1&sig=hunter2#access_token=hunter2",
        {"Cookie": "hunter2"},
        DeclaredHook("a:B", {"password": "hunter2"}),
    ],
)
def test_secrets_are_masked_wherever_they_stand(secret):
    shown = mask(secret)
    assert "hunter2" not in str(shown)
    assert "***" in str(shown)


@pytest.mark.parametrize(
    "harmless",
    [
        {"max_tokens": 5, "keyword": "x"},
        "https://example.org/v1?country_code=de&page=2#top",
        "python server.py --port 8080 --author me",
        "You are a careful assistant. Keep each secret to yourself; cite your code: authors, keywords and all.",
        [1, None, True],
        "",
    ],
)
def test_other_values_stay_as_they_are(harmless):
    assert mask(harmless) == harmless


def test_text_beside_a_secret_is_still_shown():
    assert mask('server --header "Authorization: Bearer x" --port 3') == 'server --header "Authorization: ***" --port 3'
    assert mask("server --header x-api-key:abc --port 3") == "server --header x-api-key:*** --port 3"
    assert mask("https://example.org/mcp?code=abc&page=2") == "https://example.org/mcp?code=***&page=2"
