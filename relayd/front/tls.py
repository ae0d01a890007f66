"""TLS towards clients: the certificate, its key, and what is wrong with them.

OpenSSL says "PEM lib" of nearly everything; so where it does not take the pair, the files are looked at one
by one, to name the one that is to be changed.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from relayd.auth.files import read_plain, remarks_on_readers
from relayd.config import Tls
from relayd.readers import Remark, refusal

CERT, KEY = "tls.cert", "tls.key"
LARGEST_PEM = 1 << 20  # bytes
WHY_NOT = {  # OpenSSL's reasons for a pair that could be read
    "EE_KEY_TOO_SMALL": "the key is too small: RSA takes 2048 bits or more",
    "CA_KEY_TOO_SMALL": "the key of a certificate in its chain is too small: RSA takes 2048 bits or more",
    "CA_MD_TOO_WEAK": "a certificate in its chain is signed with a hash that is too weak, such as SHA-1",
    "BAD_END_LINE": "a certificate is cut off: there is no END CERTIFICATE",
}


def listener_context(settings: Tls) -> ssl.SSLContext | None:
    """Return what TLS towards clients needs, or None for plain HTTP.

    Raises:
        SettingError: the certificate or its key cannot be used.
    """
    if not settings.cert and not settings.key:
        return None
    if not settings.cert or not settings.key:
        found, missing = ("cert", "key") if settings.cert else ("key", "cert")
        raise refusal(Remark("tls", f"there is a {found} and no {missing}", f"add {missing}: PATH"))
    cert, _ = read_plain(CERT, settings.cert, LARGEST_PEM)
    key, _ = read_plain(KEY, settings.key, LARGEST_PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM:ECDHE+CHACHA20")
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:  # a password is never asked for: there may be nobody to type it
        context.load_cert_chain(settings.cert, settings.key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise refusal(why_not(settings, cert, key, error)) from None
    return context


def why_not(settings: Tls, cert: bytes, key: bytes, error: OSError) -> Remark:
    """Return which of the two files cannot be used, and why."""
    try:
        public = load_pem_x509_certificate(cert).public_key()
    except (ValueError, UnsupportedAlgorithm):
        message = "it has no PEM certificate that can be read (BEGIN CERTIFICATE)"
        return Remark(CERT, message, "is it DER, or the key? openssl x509 -in FILE shows it", settings.cert)
    try:
        private = load_pem_private_key(key, None)
    except TypeError:
        hint = "relayd asks for no password: openssl pkey -in FILE -out NEW takes it off"
        return Remark(KEY, "it is encrypted", hint, settings.key)
    except (ValueError, UnsupportedAlgorithm):
        message = "it has no PEM private key that can be read (BEGIN PRIVATE KEY)"
        return Remark(
            KEY, message, "is it DER, or the certificate? openssl pkey -in FILE shows it", settings.key
        )
    if private.public_key() != public:
        hint = "the certificate for it comes first in tls.cert, the chain after it"
        return Remark(KEY, "it is not the key of the certificate in tls.cert", hint, settings.key)
    reason = str(getattr(error, "reason", None) or error.strerror or error)
    why = WHY_NOT.get(reason, reason.replace("_", " ").lower())
    message = f"it cannot be used with its key: {why}"
    return Remark(CERT, message, "see openssl x509 -text -in FILE", settings.cert)


def remarks_on_pair(settings: Tls, now: datetime.datetime) -> Iterator[Remark]:
    """Yield what an operator should know of a pair that can be used."""
    if not settings.cert:
        return
    ends_at = load_pem_x509_certificate(read_plain(CERT, settings.cert, LARGEST_PEM)[0]).not_valid_after_utc
    if ends_at <= now:
        yield Remark(
            CERT, f"the certificate has expired: {ends_at:%Y-%m-%d %H:%M} UTC", "renew it", settings.cert
        )
    yield from remarks_on_readers(KEY, settings.key)
