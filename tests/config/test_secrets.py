"""What may be shown of settings."""

import pytest

from hookline.config.secrets import masked
from hookline.config.settings import DeclaredHook


@pytest.mark.parametrize(
    "secret",
    [
        {"api_key": "hunter2"},
        {"headers": {"Authorization": "Bearer hunter2"}},
        {"tokens": ["hunter2"]},
        "https://me:hunter2@example.org/v1",
        "https://example.org/v1?api_key=hunter2&x=1",
        ("server --token hunter2", "server --api-key=hunter2"),
        "sk-hunter2hunter2",
        DeclaredHook("a:B", {"password": "hunter2"}),
    ],
)
def test_secrets_are_masked_wherever_they_stand(secret):
    shown = masked(secret)
    assert "hunter2" not in str(shown)
    assert "***" in str(shown)


@pytest.mark.parametrize("harmless", [{"max_tokens": 5, "keyword": "x"}, "https://example.org/v1", [1, None, True], ""])
def test_other_values_stay_as_they_are(harmless):
    assert masked(harmless) == harmless
