"""Where `hamr.redact` was before messages on the terminal needed it, too."""

from hamr.redact import REDACTED, looks_secret, redact, redact_text, secret_values

__all__ = ["REDACTED", "looks_secret", "redact", "redact_text", "secret_values"]
