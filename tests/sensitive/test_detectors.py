"""Detectors of sensitive values: true and false positives."""

import random
import string
import sys
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import RegistrationError
from hookline._sensitive import detectors
from hookline._sensitive.credentials import _PREFIXES
from hookline._sensitive.detectors import KINDS
from hookline._sensitive.words import KEYS, PASSWORDS
from hookline.errors import NotInstalledError
from hookline.hooks import Redactor, SensitiveDataHook, SensitiveValue, find_sensitive
from tests.cases import each_case


def found(text, kind=None, **options):
    return [text[one.start : one.end] for one in find_sensitive(text, **options) if kind in (None, one.kind)]


def chance(alphabet, size, seed=7):
    return "".join(random.Random(seed).choices(alphabet, k=size))


BASE62 = string.ascii_letters + string.digits
HEX = "0123456789abcdef"

EMAILS = [
    "bob@example.com",
    "bob.smith+news@mail.example.co.uk",
    "BOB@EXAMPLE.COM",
    "o'brien@example.ie",
    "first_last@sub-domain.example.org",
    "x@y.io",
    "user%40example.com",
    "jürgen@example.de",
    "info@müller.de",
    "a1@b2.dev",
    "bob＠example．com",
    "bob\u200b@exam\u200bple.com",
    "user@xn--bcher-kva.example",
    "very.common@example.museum",
    "disposable.style.email.with+symbol@example.com",
    "bob-smith@example.travel",
]


@each_case("value", EMAILS)
def test_email_addresses_are_found_completely(value):
    for around in ("{}", "mail {} now", "<{}>", '"{}",', "mailto:{}?x", "邮箱{}。", "({})."):
        assert found(around.format(value)) == [value], around


@each_case(
    "text",
    [
        "@app.route('/x')",
        "follow @someone",
        "root@localhost",
        "git@github.com:org/repo.git",
        "git clone ssh://git@github.com/org/repo.git",
        "logo@2x.png",
        "npm install left-pad@1.3.0",
        "a @ b.com",
        "foo@",
        "@example.com",
        "user@.com",
        "import x from '@types/node.d.ts'",
        "price @ 5.00",
        "user@host",
        "@@ -1,4 +1,4 @@",
        "requests @ git+https://example.org/x.git",
    ],
)
def test_other_at_signs_are_not_email_addresses(text):
    assert found(text) == []


PHONES = [
    "+49 30 1234567",
    "+49 (0)30 1234567",
    "+44 20 7946 0958",
    "+44 (0)20 7946 0958",
    "+1 415 555 2671",
    "+1-415-555-2671",
    "+14155552671",
    "+1 (415) 555-2671",
    "+33 6 12 34 56 78",
    "+8613812345678",
    "+91 98765 43210",
    "+55 11 91234-5678",
    "+353 1 234 5678",
    "+420 601 123 456",
    "0049 30 1234567",
    "0044 20 7946 0958",
    "(415) 555-2671",
    "(415)555-2671",
    "1 (415) 555-2671",
    "415-555-2671",
    "415.555.2671",
    "1-800-555-1234",
    "+49\u00a030\u00a01234567",
    "＋49 30 1234567",
    "+49 30 12\u200b34567",
]


@each_case("value", PHONES)
def test_telephone_numbers_are_found_completely(value):
    for around in ("{}", "call {} today", "({})", "{}.", '"{}"', "tel:{}"):
        assert "".join(found(around.format(value), "phone")).strip("()") == value.strip("()"), around


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("tel: 020 7946 0958", "020 7946 0958"),
        ("Phone number: 030/1234567", "030/1234567"),
        ('{"phone": "06 12 34 56 78"}', "06 12 34 56 78"),
        ("mobile 0171 2345678, thanks", "0171 2345678"),
        ("phone_number=02079460958", "02079460958"),
        ("Fax. 089 / 123 456", "089 / 123 456"),
    ],
)
def test_a_word_before_it_makes_a_number_a_telephone_number(text, value):
    assert found(text, "phone") == [value]


@each_case(
    "text",
    [
        "2026-01-15 10:20:30",
        "on 15.01.2026 at 10:20",
        "ISBN 978-3-16-148410-0",
        "order 112-3456789-1234567",
        "order #0012345678",
        "version 2.11.4.0981",
        "1768000000000",
        "2026-01-15T10:20:30+01:00",
        "+0100",
        "1 + 4915112345679 = x",
        "192.168.100.200",
        "a+49301234567",
        "pages 123-456",
        "3.14159265358979",
        "12345678-1234-5678-1234-567812345678",
        "+1 000 000 0000",
        "0x0049301234567",
        "tel 2026-01-15 10:20",
        "diff: +12345 -67890",
        "postcode 12345-6789",
        "1,234,567,890",
        "+999 123",
        "x = y +35236450.6",
    ],
)
def test_other_numbers_are_not_telephone_numbers(text):
    assert found(text) == []


CARDS = [
    "4111 1111 1111 1111",
    "4111111111111111",
    "4111-1111-1111-1111",
    "4111.1111.1111.1111",
    "4111_1111_1111_1111",
    "4111/1111/1111/1111",
    "5555555555554444",
    "5105 1051 0510 5100",
    "2223003122003222",
    "378282246310005",
    "3782 822463 10005",
    "30569309025904",
    "6011111111111117",
    "3530111333300000",
    "6200000000000005",
    "4222222222222",
    "4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1",
    "4111  1111  1111  1111",
    "4111 - 1111 - 1111 - 1111",
    "４１１１ １１１１ １１１１ １１１１",
    "4111\u200b1111\u200b1111\u200b1111",
    "4111\u20111111\u20111111\u20111111",
    "٤١١١١١١١١١١١١١١١",
    "4111\x001111\x001111\x001111",
]


@each_case("value", CARDS)
def test_payment_cards_are_found_completely(value):
    for around in ("{}", "card {} 12/28 123", "n={},", '"{}"', "order 17 {}", "a_{}"):
        assert found(around.format(value), "card") == [value], around


@pytest.mark.parametrize("sign", ["\\n", "\\r\\n", "\\t"])
@each_case(
    "value",
    [
        "4111111111111111",
        "4111 1111 1111 1111",
        "DE89370400440532013000",
        "+49 30 12345678",
        "212-555-0123",
        "203.0.113.7",
        "bob@example.com",
        "ghp_1234567890abcdefghijABCDEFGHIJ123456",
        "AKIAIOSFODNN7EXAMPLZ",
    ],
)
def test_values_next_to_escaped_line_breaks_are_found(value, sign):
    text = f'{{"body": "Hello{sign}{value}{sign}Bye"}}'
    assert found(text) == [value]
    assert Redactor().apply(text).count(sign) == 2


@pytest.mark.parametrize("card", ["4111111111111111", "4111 1111 1111 1111", "4111-1111-1111-1111"])
@pytest.mark.parametrize("row", ["Bob,{},12/27", "17,{},Bob", "id,card\n1,{}\n", "No.{}", "a.b,{}"])
def test_payment_cards_are_found_in_columns_and_after_abbreviations(card, row):
    assert found(row.format(card)) == [card]


@each_case(
    "text",
    [
        "4111111111111112",
        "1111111111111111",
        "0000 0000 0000 0000",
        "1768000000000",
        "0.4111111111111111",
        "3.4111111111111111",
        "41111111111111111111111",
        "abc4111111111111111",
        "4111111111111111abc",
        "ab12cd34-4111-1111-1111-111111111111",
        "9780306406157",
        "4006381333931",
        "20260115102030123",
        "4111 1111 1111",
        "[4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]",
        "4111\n1111\n1111\n1111",
        "5 3 4 6 7 8 9 1 2",
    ],
)
def test_other_long_numbers_are_not_cards(text):
    assert found(text) == []


IBANS = [
    "DE89 3704 0044 0532 0130 00",
    "DE89370400440532013000",
    "de89370400440532013000",
    "GB29 NWBK 6016 1331 9268 19",
    "GB29NWBK60161331926819",
    "FR14 2004 1010 0505 0001 3M02 606",
    "NL91 ABNA 0417 1643 00",
    "ES91 2100 0418 4502 0005 1332",
    "IT60 X054 2811 1010 0000 0123 456",
    "CH93 0076 2011 6238 5295 7",
    "NO93 8601 1117 947",
    "BE68 5390 0754 7034",
    "MT84 MALT 0110 0001 2345 MTLC AST0 01S",
    "PL61 1090 1014 0000 0712 1981 2874",
    "SE45 5000 0000 0583 9825 7466",
    "KZ86125KZT5004100100",
    "BR15 0000 0000 0000 1093 2840 814P 2",
    "AT61-1904-3002-3457-3201",
    "ＤＥ89 3704 0044 0532 0130 00",
]


@each_case("value", IBANS)
def test_bank_accounts_are_found_completely(value):
    for around in ("{}", "to {} OK", "IBAN:{}.", '"{}"', "DE12 {}"):
        assert found(around.format(value), "iban") == [value], around


@pytest.mark.parametrize(
    "text",
    [
        "DE89 3704 0044 0532 0130 01",
        "DE89 3704 0044 0532 0130",
        "XX89 3704 0044 0532 0130 00",
        "DE893704004405320130001",
        "ADE89370400440532013000",
        "be61730f-ec47-90fb-0000-000000000000",
        "IT60 people came in 2024 to see 0542 8111",
        "SE45 5000",
        "AB12 3456 7890 1234 5678 90",
        "GB29NWBK6016133192681",
        "PL-2024-01-15-0000-0000",
        "GB 29 NWBK",
        "de89370400440532013000ff",
        "NO93 8601 1117 948",
        "FI21 1234 5600 0007 86",
    ],
)
def test_other_codes_are_not_bank_accounts(text):
    assert found(text) == []


@each_case(
    "value",
    [
        "203.0.113.7",
        "8.8.8.8",
        "1.2.3.4",
        "223.255.255.254",
        "100.1.2.3",
        "172.32.0.1",
        "11.0.0.1",
        "2001:db8::1",
        "2001:db8:85a3:0:0:8a2e:370:7334",
        "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
        "2a00:1450:4001:81b::200e",
        "2606:4700:4700::1111",
        "3fff::1",
        "203.0.113.255",
        "203.0.113.1",
        "2001:db8::",
    ],
)
def test_ip_addresses_are_found_completely(value):
    for around in ("{}", "from {}, port", "[{}]:80", '"{}"', "http://{}/x", "src={} dst"):
        assert found(around.format(value)) == [value], around


@each_case(
    "text",
    [
        "127.0.0.1:8080",
        "0.0.0.0",
        "255.255.255.0",
        "10.1.2.3",
        "192.168.1.10",
        "172.16.0.1",
        "169.254.1.1",
        "v1.2.3.4",
        "version 1.2.3.4",
        "package-1.2.3.4.tar.gz",
        "Mozilla/5.0 Chrome/120.0.0.0 Safari",
        "RFC 5890 §2.3.2.1",
        "see section 4.2.3.1",
        "Guile 3.0.5.130-5a1e7",
        "1.2.3.4.5",
        "256.1.1.1",
        "01.02.03.04",
        "1.2.3",
        "std::vector",
        "a::b",
        "dead::beef",
        "10:20:30",
        "aa:bb:cc:dd:ee:ff",
        "::1",
        "fe80::1",
        "x[::2]",
        "fd00::1",
    ],
)
def test_other_dots_and_colons_are_not_ip_addresses(text):
    assert found(text) == []


def test_private_ip_addresses_are_found_only_with_private_ips():
    text = "10.1.2.3 192.168.1.10 172.16.0.1 fd00::1 fe80::1 127.0.0.1"
    assert found(text, private_ips=True) == text.split()[:-1]


@pytest.mark.parametrize("text", ["219-09-9998", "219 09 9998", "SSN:219-09-9998.", "(219-09-9998)", "a, 219 09 9998;"])
def test_us_social_security_numbers_are_found_by_default(text):
    (number,) = found(text, "ssn")
    assert number in ("219-09-9998", "219 09 9998")


@pytest.mark.parametrize("name", ["SSN: ", "ssn=", '"ssn": "', "Social Security Number ", "social security no. "])
def test_nine_digits_are_a_social_security_number_after_its_name(name):
    assert found(f"{name}219099998", "ssn") == ["219099998"]
    assert found(f"{name}666123456", "ssn") == []


@each_case(
    "text",
    [
        "219099998",  # too common without separators
        "219-09 9998",
        "219.09.9998",
        "000-12-3456",
        "666-12-3456",
        "900-12-3456",
        "219-00-9998",
        "219-09-0000",
        "078-05-1120",  # printed in wallets
        "1219-09-9998",
        "219-09-99981",
        "A219-09-9998",
        "219-09-9998-1",
        "120 219 09 9998",  # a row of numbers
        "219 09 9998 15",
        "219  09  9998",
    ],
)
def test_other_numbers_are_not_us_social_security_numbers(text):
    assert found(text, "ssn") == []


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [
        ("phone", "phonenumbers", "phonenumbers"),
        ("card", "stdnum", "python-stdnum"),
        ("iban", "stdnum", "python-stdnum"),
        ("ssn", "stdnum", "python-stdnum"),
    ],
)
def test_a_missing_library_gives_an_error_that_says_how_to_install_it(monkeypatch, kind, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    for make in (Redactor, SensitiveDataHook):
        with pytest.raises(NotInstalledError, match=rf"{package} is not installed: pip install .*\[sensitive\]"):
            make([kind])
    assert Redactor(["secret", "email", "ip"]).apply("bob@example.com") == "[email]"


SECRETS = {
    "openai": "sk-" + chance(BASE62, 48),
    "openai project": "sk-proj-" + chance(BASE62 + "_-", 120),
    "anthropic": "sk-ant-api03-" + chance(BASE62 + "_-", 93) + "AA",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "aws temporary": "ASIA" + chance(string.ascii_uppercase + "234567", 16),
    "aws without digits": "AKIAABCDEFGHIJKLMNOP",
    "aws secret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "github": "ghp_" + chance(BASE62, 36),
    "github oauth": "gho_" + chance(BASE62, 36),
    "github user": "ghu_" + chance(BASE62, 36),
    "github server": "ghs_" + chance(BASE62, 36),
    "github refresh": "ghr_" + chance(BASE62, 36),
    "github fine": "github_pat_" + chance(BASE62, 22) + "_" + chance(BASE62, 59),
    "gitlab": "glpat-" + chance(BASE62 + "-_", 20),
    "gitlab runner": "glrt-" + chance(BASE62, 20),
    "slack": "xoxb-123456789012-1234567890123-" + chance(BASE62, 24),
    "slack user": "xoxp-123456789012-123456789012-" + chance(HEX, 32),
    "slack app": "xapp-1-A012345-123456789-" + chance(HEX, 40),
    "stripe": "sk_live_" + chance(BASE62, 24),
    "stripe restricted": "rk_live_" + chance(BASE62, 24),
    "stripe webhook": "whsec_" + chance(BASE62, 32),
    "google": "AIza" + chance(BASE62 + "-_", 35),
    "google oauth": "ya29." + chance(BASE62 + "-_", 60),
    "google secret": "GOCSPX-" + chance(BASE62, 28),
    "npm": "npm_" + chance(BASE62, 36),
    "pypi": "pypi-AgEIcHlwaS5vcmc" + chance(BASE62 + "-_", 80),
    "hugging face": "hf_" + chance(string.ascii_letters, 34),
    "sendgrid": "SG." + chance(BASE62, 22) + "." + chance(BASE62, 43),
    "twilio": "SK" + chance(HEX, 32),
    "twilio account": "AC" + chance(HEX, 32),
    "telegram": "123456789:AA" + chance(BASE62 + "-_", 33),
    "discord": "MTk4NjIyNDgzNDcxOTI1MjQ4.Cl2FMQ.ZnCjm1XVW7vRze4b7Cq4se7kKWs",
    "digitalocean": "dop_v1_" + chance(HEX, 64),
    "shopify": "shpat_" + chance(HEX, 32),
    "mailgun": "key-" + chance(HEX, 32),
    "mailchimp": chance(HEX, 32) + "-us12",
    "databricks": "dapi" + chance(HEX, 32),
    "vault": "hvs." + chance(BASE62, 24),
    "linear": "lin_api_" + chance(BASE62, 40),
    "notion": "secret_" + chance(BASE62, 43),
    "notion new": "ntn_" + chance(BASE62, 46),
    "figma": "figd_" + chance(BASE62 + "-_", 40),
    "docker": "dckr_pat_" + chance(BASE62 + "-_", 27),
    "azure": chance(BASE62 + "+/", 86) + "==",
    "azure secret": "abc8Q~" + chance(BASE62 + "_.~-", 33) + "x",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
    "atlassian": "ATATT3xFfGF0" + chance(BASE62 + "-_=", 180) + "x",
    "grafana": "glsa_" + chance(BASE62, 32) + "_" + chance(HEX, 8),
    "new relic": "NRAK-" + chance(string.ascii_uppercase + string.digits, 27),
    "postman": "PMAK-" + chance(HEX, 24) + "-" + chance(HEX, 34),
    "doppler": "dp.pt." + chance(BASE62, 43),
    "pulumi": "pul-" + chance(HEX, 40),
    "terraform": chance(BASE62, 14) + ".atlasv1." + chance(BASE62, 67),
    "planetscale": "pscale_tkn_" + chance(BASE62, 43),
    "supabase": "sbp_" + chance(HEX, 40),
    "groq": "gsk_" + chance(BASE62, 52),
    "replicate": "r8_" + chance(BASE62, 37),
    "perplexity": "pplx-" + chance(BASE62, 48),
    "xai": "xai-" + chance(BASE62, 80),
    "nvidia": "nvapi-" + chance(BASE62 + "-_", 64),
    "langsmith": "lsv2_pt_" + chance(HEX, 32) + "_" + chance(HEX, 10),
    "square": "sq0csp-" + chance(BASE62, 43),
    "rubygems": "rubygems_" + chance(HEX, 48),
    "airtable": "pat" + chance(BASE62, 14) + "." + chance(HEX, 64),
    "dynatrace": "dt0c01." + chance(string.ascii_uppercase, 24) + "." + chance(string.ascii_uppercase + "23", 64),
    "tailscale": "tskey-auth-" + chance(BASE62, 17) + "-" + chance(BASE62, 32),
    "age": "AGE-SECRET-KEY-1" + chance(string.ascii_uppercase + "0234", 58),
    "random": chance(BASE62, 32),
    "random with signs": chance(BASE62 + "_-", 43),
}


def test_token_prefixes_of_at_least_forty_vendors_are_known():
    assert len(_PREFIXES) >= 40


@each_case("value", SECRETS.values())
def test_tokens_are_found_completely(value):
    for around in ("{}", "use {} now", '"{}",', "X={}\n", "'k': '{}'", "({}).", "钥{}匙"):
        assert found(around.format(value), "secret") == [value], around


@pytest.mark.parametrize("name", ["github", "gitlab", "jwt", "stripe", "anthropic", "aws", "slack"])
def test_tokens_are_found_after_a_dash_or_an_underscore(name):
    assert SECRETS[name] in found(f"my_{SECRETS[name]}")[0]
    assert SECRETS[name] in found(f"old-{SECRETS[name]}")[0]


@each_case(
    ("text", "value"),
    [
        ("password=hunter2", "hunter2"),
        ("password: hunter2, user: bob", "hunter2"),
        ("the password is hunter2.", "hunter2"),
        ("DB_PASSWORD=letmein", "letmein"),
        ("export PGPASSWORD=swordfish", "swordfish"),
        ("https://x.example/login?user=a&password=letmein&z=1", "letmein"),
        ('{"password": "letmein"}', "letmein"),
        ('{\\"password\\": \\"letmein\\"}', "letmein"),
        ("passwd = 'p w d 1'", "p w d 1"),
        ("passphrase: 'correct horse battery staple'", "correct horse battery staple"),
        ("pwd := s3cr3t!", "s3cr3t"),
        ("PASSWORD => 'x1y2z3'", "x1y2z3"),
        ("api_key: abcd1234efgh", "abcd1234efgh"),
        ("'apiKey': 'abcd1234efgh'", "abcd1234efgh"),
        ("X-Api-Key: 0123456789abcdef", "0123456789abcdef"),
        ("client_secret = 0a1b2c3d4e5f", "0a1b2c3d4e5f"),
        ("access token: 5f4dcc3b5aa765d61d8327deb882cf99", "5f4dcc3b5aa765d61d8327deb882cf99"),
        ("AccountKey=YWJjZGVmMTIzNDU2Nzg5MA==", "YWJjZGVmMTIzNDU2Nzg5MA=="),
        (
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        ),
        ("Authorization: Bearer abc123def456ghi789", "abc123def456ghi789"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZDEy", "dXNlcjpwYXNzd29yZDEy"),
        ("postgres://bob:s3cret@db.example.com/x", "bob:s3cret"),
        ("redis://:p4ss@cache:6379", ":p4ss"),
        ("https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX", None),
        ("пароль password＝hunter2", "hunter2"),
        ("pass\u200bword=hun\u200bter2", "hun\u200bter2"),
        ("your key 9f8a7b6c5d4e3f2g1h0", "9f8a7b6c5d4e3f2g1h0"),
    ],
)
def test_a_value_assigned_to_a_password_or_key_is_a_secret(text, value):
    assert found(text, "secret") == [value or "T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX"]


@each_case(
    ("text", "value"),
    [
        ("password=letmein", "letmein"),
        ("Server=db;User=bob;Password=letmein;", "letmein"),
        ("host:6379,password=letmein,ssl=True", "letmein"),
        ("  password: letmein\nuser: bob", "letmein"),
        ("[client]\npassword = letmein\n", "letmein"),
        ("mysql --password=letmein db", "letmein"),
        ("mysql --password letmein db", "letmein"),
        ("tool --db-password letmein", "letmein"),
        ("tool --api-key abcd1234efgh", "abcd1234efgh"),
        ("tool --password 'let me in'", "let me in"),
        ('password: "correct horse battery"', "correct horse battery"),
        ("password = 'my dog rex'", "my dog rex"),
        ("password: “correct horse battery”", "correct horse battery"),
        ("the password is `correct horse battery`", "correct horse battery"),
        ('"password": "cor\\"rect horse\\" x"', 'cor\\"rect horse\\" x'),
        ('{\\"password\\": \\"correct horse\\"}', "correct horse"),
        ("password=" + "aB1+" * 80, "aB1+" * 80),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("https://0a1b2c3d4e5f6a7b8c9d@example.com/x", "0a1b2c3d4e5f6a7b8c9d"),
        ("postgres://bob:p@ss@db.example.com/x", "bob:p@ss"),
    ],
)
def test_settings_options_quotes_and_logins_have_secrets(text, value):
    assert found(text, "secret") == [value]


@each_case(
    ("text", "values"),
    [
        ("curl -u bob:swordfish https://example.com", ["bob:swordfish"]),
        ("curl -sSu bob:swordfish https://example.com", ["bob:swordfish"]),
        ("curl https://example.com --user=bob:swordfish", ["bob:swordfish"]),
        ("curl -X POST \\\n  -u 'bob:sword fish'", ["bob:sword fish"]),
        ("curl -U proxy:swordfish -u bob:letmein x", ["proxy:swordfish", "bob:letmein"]),
        ("http -a bob:swordfish https://example.com", ["bob:swordfish"]),
        ("mysqldump -uroot -pswordfish db", ["swordfish"]),
        ("sshpass -p 'sword fish' ssh host", ["sword fish"]),
        ("redis-cli -a swordfish ping", ["swordfish"]),
        ("docker login -u bob -p swordfish", ["swordfish"]),
        ("openssl rsa -passin pass:swordfish", ["swordfish"]),
        ("Cookie: sid=abcdef; theme=dark; n=1", ["abcdef", "dark"]),
        ("cookie: " + "a=bcde; " * 300, ["bcde"] * 300),
        ("Set-Cookie: sid=abcdef; Path=/home; HttpOnly", ["abcdef"]),
        ("curl -H 'Cookie: sid=abcdef'", ["abcdef"]),
        ('{"cookie": "sid=abcdef; b=zzzz"}', ["abcdef", "zzzz"]),
    ],
)
def test_logins_in_commands_and_cookies_are_secrets(text, values):
    assert found(text, "secret") == values


@each_case("name", sorted({word for words in PASSWORDS.values() for word in words}))
def test_words_for_a_password_in_other_languages_are_known(name):
    forms = ("{}: hunter22", "{} = hunter22", '{}: "correct horse"', "XX {}：hunter22")
    for form, written in product(forms, (name, name.capitalize(), name.upper())):
        assert found(form.format(written), "secret") == ["correct horse" if '"' in form else "hunter22"], form


@each_case("name", sorted({word for words in KEYS.values() for word in words}))
def test_words_for_a_key_in_other_languages_are_known(name):
    assert found(f"{name}: 0a1b2c3d4e", "secret") == ["0a1b2c3d4e"]
    assert found(f"{name}: abcdefgh", "secret") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Das Passwort lautet hunter22.", "hunter22"),
        ("le mot de passe est hunter22", "hunter22"),
        ("la contraseña es hunter22", "hunter22"),
        ("密码是hunter22。", "hunter22"),
        ("パスワードはhunter22です", "hunter22"),
        ("пароль: кошка123", "кошка123"),
    ],
)
def test_sentences_with_a_password_in_other_languages_are_understood(text, value):
    assert found(text, "secret") == [value]


KEY = "-----BEGIN {0}-----\n" + "\n".join(chance(BASE62 + "+/", 64, n) for n in range(5)) + "\n-----END {0}-----"


@pytest.mark.parametrize("sort", ["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "EC PRIVATE KEY"])
def test_a_private_key_is_found_from_its_first_to_its_last_line(sort):
    key = KEY.format(sort)
    assert found(f"here: {key} that was it") == [key]
    assert found(f'"{key}"'.replace("\n", "\\n")) == [key.replace("\n", "\\n")]


def test_a_private_key_without_an_end_is_found_as_far_as_it_looks_like_one():
    begun = KEY.format("RSA PRIVATE KEY").partition("-----END")[0]
    assert found(begun) == [begun]
    assert found("-----BEGIN PRIVATE KEY----- is how it starts") == []


@pytest.mark.parametrize("sort", ["CERTIFICATE", "PUBLIC KEY", "RSA PUBLIC KEY"])
def test_public_keys_and_certificates_are_not_secrets(sort):
    assert found(KEY.format(sort)) == []


@each_case(
    "text",
    [
        "123e4567-e89b-12d3-a456-426614174000",
        "commit 5f4dcc3b5aa765d61d8327deb882cf9912345678",
        "sha256:" + chance(HEX, 64),
        "order = 0x" + chance(HEX, 64).upper(),
        '"integrity": "sha512-' + chance(BASE62 + "+/", 86) + '=="',
        "golang.org/x/text v0.3.0 h1:" + chance(BASE62, 43) + "=",
        "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQ" + chance(BASE62, 60),
        "data:image/png;base64,iVBORw0KGgo" + chance(BASE62, 100),
        "https://docs.example.com/document/d/1BxiMVs0XRA5nFMdKvBdBZjgmUUqptlbs74OgvE2upms/edit",
        "/usr/local/lib/python3.11/site-packages/x86_64/Lib2to3",
        "testUserCanLoginWithTwoFactorAuth2",
        "get_user_by_id_and_name_2_from_table_7",
        "HTTP_500_INTERNAL_SERVER_ERROR_CODE_2",
        "how-to-build-a-house-in-30-days-or-less",
        "web-7d4b9c6f5d-x2x9z",
        "a" * 200,
        "password: str",
        "password = getpass()",
        "password=os.environ['PASSWORD']",
        "password: ${PASSWORD}",
        "password: ********",
        "password: <your password>",
        "password is required",
        '"password": "Enter your password"',
        "password=None, token=None",
        "max_tokens=4096",
        "token_count: 12345678",
        "tokens: 1500",
        "the secretary: Bob Smith 1",
        "def f(token: str, secret: bytes) -> None",
        "primary key = id",
        "for key in sorted(items2024):",
        "cache key: user42profile",
        "sorted(key=lambda x1: x1.name2)",
        "api_key = settings.api_key",
        "token = self.token_2",
        "secret = 'short'",
        "private_key: Ed25519PrivateKey | None",
        "refund pi_3MtwBwLkdIwHu7ix28a3tqPa for cus_NffrFeUfNV2Hib",
        "toolu_01D7FLrfh4GYq7yT1ULFeyMV",
        "chatcmpl-AbCdEfGh1JkLmN0pQrStUvWxYz123",
        "http://example.com:8080/x@y",
        "the bearer understanding of characterization",
        "sk-circle-fade-dot-container-wrapper",
        "task-management-system-overview-page-2",
        "[secret] [email]",
        "key-value-store-with-many-words",
        "2026-01-15T10:20:30.123456Z",
        "x-request-id: 7b1f0c0e-2f5a-4f0e-9d1c-8a2b3c4d5e6f",
        "connect(host, password=pw)",
        "connect(host, password=letmein)",
        "connect(\n    password=letmein,\n)",
        "password=new_password",
        "password=form.password",
        "password: required",
        "password = getpass.getpass",
        "pwd = path",
        "use --password to set it, or the --password option",
        "--password PASSWORD  the password",
        "--password-stdin reads it",
        '"password": "Your password has expired."',
        '"password": "Must be longer"',
        '"password": "Mot de passe"',
        "docker run -u 1000:1000 image",
        "chown -R user:group dir",
        'curl -u "$USER:$PASSWORD" x',
        "curl -u bob:<password> x",
        "options of commands (`curl -u user:password`, `sshpass -p secret`), too",
        "Cookie: what is it?",
        "cookie: a=b",
        "set_cookie(name=value)",
        "the Spanish enclave: abc12345",
        "Contraseña: obligatoria",
        "https://bob@example.com/x",
    ],
)
def test_ordinary_code_and_text_have_no_secrets(text):
    assert found(text) == []


def test_a_line_of_a_base64_file_is_not_a_secret():
    lines = "\n".join(chance(BASE62 + "+/", 76, n) for n in range(6))
    assert found(lines) == []


def test_of_two_overlapping_values_the_longer_one_is_found():
    text = "https://bob:s3cret@example.com"
    assert find_sensitive(text) == [SensitiveValue("secret", 8, 18, "login")]
    assert find_sensitive("x" * 8 + "bob@example.com") == [SensitiveValue("email", 0, 23)]
    both = find_sensitive("+44 20 7946 0958 4111 1111 1111 1111")
    assert [(one.kind, one.start, one.end) for one in both] == [("phone", 0, 16), ("card", 17, 36)]


def test_only_the_given_kinds_are_found():
    text = "bob@example.com 203.0.113.7 4111111111111111"
    assert found(text, kinds=["ip"]) == ["203.0.113.7"]
    assert found(text, kinds=[]) == []


@pytest.mark.parametrize("kinds", ["email", ["mail"], [3], {"email": 1}, None])
def test_an_unknown_kind_is_rejected(kinds):
    with pytest.raises(RegistrationError):
        find_sensitive("x", kinds)


ODD = [*"\ud800\udfff\u200b\x00\x1e\u2028@+(:-.='\"\\", "eyJ", "00", *EMAILS, *CARDS, *IBANS]


@given(st.lists(st.one_of(st.text(max_size=20), st.sampled_from(ODD), st.integers().map(str))))
def test_findings_are_ordered_and_do_not_overlap_in_any_text(parts):
    text = "".join(parts)
    end = 0
    for one in find_sensitive(text, KINDS, private_ips=True):
        assert end <= one.start < one.end <= len(text)
        end = one.end


@given(st.binary(max_size=300))
def test_binary_data_is_searched(raw):
    text = raw.decode("utf-8", "surrogateescape")
    assert all(0 <= one.start < one.end <= len(text) for one in find_sensitive(text, KINDS))


HOSTILE = [
    "@",
    "a@",
    "@a",
    "a@b.",
    "1",
    "1 ",
    "4 ",
    "4111 ",
    "a",
    "eyJ",
    "eyJ.",
    ":",
    "::",
    "1:",
    ".",
    "1.",
    "-",
    "password=",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----",
    "password='",
    "+",
    "+1",
    "(",
    "00",
    "://",
    "a://",
    ":a@",
    "sk-",
    "key",
    "DE89 ",
    "DE89",
    "%40",
    "tel",
    "tel: 1 ",
    "bearer ",
    "\u200b",
    "é",
    "\ud800",
    "hooks",
    "=",
    "A1b2",
    "A1/",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.slow
def test_adversarial_text_is_searched_in_linear_time(piece):
    text = piece * (60_000 // len(piece))
    assert all(one.end <= len(text) for one in find_sensitive(text, KINDS))


def test_a_secret_in_ten_megabytes_is_found():
    text = "all work and no play makes a dull text, 24 hours a day.\n" * 180_000
    at = len(text) // 2
    assert [one.start for one in find_sensitive(text[:at] + " bob@example.com " + text[at:])] == [at + 1]


PLAIN = st.one_of(
    st.text("abcXYZ.,;'()!?/_-", min_size=1, max_size=19),
    st.sampled_from(
        ["password", "is", "'correct", "horse'", "--password", "swordfish", "redis-cli", "-a", "let!me", "senha"]
    ),
)


@given(st.lists(PLAIN, max_size=40).map(" ".join))
def test_the_shortcut_for_plain_words_never_misses_a_value(text):
    quick = find_sensitive(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detectors, "_SHORT", -1)
        assert find_sensitive(text) == quick
