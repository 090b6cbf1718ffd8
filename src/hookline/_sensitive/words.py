"""Words that precede a password or another secret, in many languages. This module contains only data."""

from __future__ import annotations

PASSWORDS: dict[str, tuple[str, ...]] = {
    "Arabic": ("كلمة المرور", "كلمة السر", "الرقم السري"),
    "Chinese": ("密码", "密碼", "口令", "通行码"),
    "Croatian": ("lozinka", "zaporka"),
    "Czech": ("heslo",),
    "Danish": ("adgangskode", "kodeord"),
    "Dutch": ("wachtwoord",),
    "Finnish": ("salasana",),
    "French": ("mot de passe", "motdepasse", "mot_de_passe", "mdp"),
    "German": ("passwort", "kennwort", "passphrase"),
    "Greek": ("κωδικός πρόσβασης", "κωδικός", "συνθηματικό"),
    "Hebrew": ("סיסמה", "סיסמא"),
    "Hindi": ("पासवर्ड", "कूटशब्द"),
    "Hungarian": ("jelszó", "jelszo"),
    "Indonesian": ("kata sandi",),
    "Italian": ("parola d'ordine", "parola di accesso"),
    "Japanese": ("パスワード", "暗証番号", "合言葉"),
    "Korean": ("비밀번호", "패스워드", "암호"),
    "Norwegian": ("passord",),
    "Polish": ("hasło", "haslo"),
    "Portuguese": ("senha", "palavra-passe", "palavra passe"),
    "Romanian": ("parolă", "parola"),
    "Russian": ("пароль", "парольная фраза"),
    "Spanish": ("contraseña", "contrasena", "clave de acceso", "clave"),
    "Swedish": ("lösenord", "losenord"),
    "Thai": ("รหัสผ่าน",),
    "Turkish": ("şifre", "sifre", "parola"),
    "Ukrainian": ("гасло", "пароль"),
    "Vietnamese": ("mật khẩu", "mat khau"),
}
"""Words for a password, in lower case. The English ones are in the expressions of ``assignments.py``."""

KEYS: dict[str, tuple[str, ...]] = {
    "Chinese": ("密钥", "密鑰", "令牌", "私钥", "私鑰"),
    "Dutch": ("geheime sleutel", "toegangssleutel", "api-sleutel", "geheim"),
    "French": ("jeton", "clé secrète", "clé privée", "clé api", "clé d'api", "cle api"),
    "German": ("zugriffsschlüssel", "api-schlüssel", "geheimer schlüssel", "privater schlüssel", "geheimnis"),
    "Italian": ("chiave segreta", "chiave privata", "chiave api", "segreto"),
    "Japanese": ("トークン", "シークレット", "秘密鍵", "アクセスキー", "apiキー"),
    "Korean": ("토큰", "비밀키", "비밀 키", "api 키"),
    "Polish": ("klucz api", "klucz prywatny", "tajny klucz", "sekret"),
    "Portuguese": ("chave secreta", "chave privada", "chave de api", "chave api", "segredo"),
    "Russian": ("токен", "секретный ключ", "закрытый ключ", "ключ api", "api-ключ", "секрет"),
    "Spanish": ("clave secreta", "clave privada", "clave api", "clave de api", "secreto"),
    "Turkish": ("gizli anahtar",),
    "Ukrainian": ("секретний ключ", "ключ api"),
}
"""Words for a token, a key or another secret, in lower case."""

IS = ("is", "was", "ist", "lautet", "est", "es", "é", "è", "jest", "это", "är", "er", "je", "este", "adalah", "là")
"""Words between a name and its value. In scripts without spaces they are in ``IS_WITHOUT_SPACES``."""

IS_WITHOUT_SPACES = ("是", "为", "為", "は", "은", "는")

_SENTENCE_TEXT = """
about again all already also an and any are as at be been before but by can cannot could did different do does
empty enter expired field for forgot forgotten from had has have here how if in incorrect invalid into is it its
least less long longer match may minimum more must need new no not of off on only optional or our please
required reset same set should show so than that the their them then there these they this to too try type up use
used user using valid was we were what when where which will with wrong you your
aber bitte das dein den der die ein eine eingeben für ihr ist kein mit muss nicht oder und vergessen wird zu
au avec dans de des doit du est et le les ne ou oublié par pas pour saisir sur une votre
con debe del el en es introduzca la las los no olvidada olvidó para por su tu una
"""
SENTENCE = frozenset(_SENTENCE_TEXT.split())
"""Words of sentences and labels: a quoted text with one of them is not a passphrase."""

_STATES_TEXT = """
accept accepted active any array bcrypt blank bool boolean buffer bytes changed char confirmed correct default
denied disabled empty enabled encrypted expired expires failed failure false field generated hash hashed
hidden incorrect input integer invalid login logout masked missing never none null number object omitted
option optional param parameter plain plaintext prompt protected provided recovery rejected required reset
rotate rotated saved set stored string strong success text true type unchanged unknown unset updated user
username valid validated value varchar verified weak wrong
abgelaufen erforderlich falsch geändert leer ungültig vergessen incorrect modifié oublié requis obligatoire invalide
obligatoria obligatorio requerida requerido incorrecta olvidada obbligatoria obbligatorio errata obrigatória obrigatório
incorreta verplicht vergeten onjuist wymagane puste błędne обязательно обязателен неверный неверно забыли пусто
"""
STATES = frozenset(_STATES_TEXT.split())
"""Words that describe a password or its field: in ``password: required`` nothing is secret."""

_VARIABLES_TEXT = """
arg args body conf config cred credentials creds data default env field form hash hashed input key kwargs
name new old opt options opts param params pass passwd password plain plaintext pw pwd raw req request
result secret self str string text this token user username val value
"""
VARIABLES = frozenset(_VARIABLES_TEXT.split())
"""Words in names of variables: ``password=new_password`` in a program has no secret."""
