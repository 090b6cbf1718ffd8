"""Names of files and folders that usually hold secrets."""

# One family of files on a line, which the formatter would spread over a hundred lines.
SECRET_FILES = (
    ".env", ".env.*", "*.env", ".envrc", "!.env.example", "!.env.sample", "!.env.template", "!.env.dist",
    "!.env.defaults", "!*.example", "!*.sample",
    ".netrc", "_netrc", ".pgpass", "pgpass.conf", ".my.cnf", ".npmrc", ".yarnrc.yml", ".pypirc", ".htpasswd",
    ".git-credentials", ".git/config", ".git/credentials", ".vault-token", ".boto", ".s3cfg", ".dockercfg",
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".oci", ".terraform.d", ".password-store",
    ".docker/config.json", ".config/gcloud", ".config/gh", ".config/op", ".cargo/credentials*",
    ".gem/credentials", ".m2/settings.xml", ".gradle/gradle.properties", ".streamlit/secrets.toml",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!*.pub",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.keytab",
    "credentials.json", "client_secret*.json", "service[-_]account*.json",
    "secrets.json", "secrets.yaml", "secrets.yml", "secrets.toml", "*.tfstate", "*.tfstate.backup",
    ".*_history", "etc/shadow*", "etc/gshadow*", "etc/sudoers*", "etc/ssh", "etc/ssl/private",
    "proc/*/environ", "proc/*/task/*/environ", "proc/*/mem", "proc/*/fd", "proc/kcore", "run/secrets",
)  # fmt: skip
"""Globs for :func:`~hookline._base.files.matches_globs`; one that begins with ``!`` names exceptions."""
