"""A certificate and a key that cannot be used: which of the two it is, and what to do."""

from __future__ import annotations

import datetime
import os
import ssl

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from relayd.config import Tls
from relayd.front.tls import listener_context, remarks_on_pair
from relayd.readers import SettingError
from tests.support.certificates import DAY, Authority

NOW = datetime.datetime.now(datetime.UTC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with files that are what their names say."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    authority.server("localhost")
    authority.server("old", valid_for=-DAY / 2)
    pair = (folder / "localhost.pem").read_text()
    begin = pair.index("-----BEGIN PRIVATE KEY")
    key = ec.generate_private_key(ec.SECP256R1())
    files = {
        "cert": pair[:begin].encode(),
        "key": pair[begin:].encode(),
        "pair": pair.encode(),
        "other": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        "der": key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        "locked": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word")),
        "text": b"hello\n",
        "empty": b"",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o600)
    (folder / "chain").write_bytes(files["cert"] + authority.file.read_bytes())
    (folder / "wrong-chain").write_bytes(authority.file.read_bytes() + files["cert"])
    os.mkfifo(folder / "fifo")
    return folder


def tls(folder, cert: str, key: str) -> Tls:
    """Return settings with two of the folder's files."""
    return Tls(cert=cert and f"{folder}/{cert}", key=key and f"{folder}/{key}")


@pytest.mark.parametrize(("cert", "key"), [("cert", "key"), ("pair", "pair"), ("chain", "key")])
def test_a_pair_that_can_be_used(folder, cert, key):
    context = listener_context(tls(folder, cert, key))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert list(remarks_on_pair(tls(folder, cert, key), NOW)) == []


def test_no_pair_is_no_TLS():
    assert listener_context(Tls()) is None
    assert list(remarks_on_pair(Tls(), NOW)) == []


WRONG = [
    ("cert", "", "tls: there is a cert and no key; add key: PATH"),
    ("", "key", "tls: there is a key and no cert; add cert: PATH"),
    ("gone", "key", "tls.cert: {}/gone: it cannot be read: no such file"),
    ("cert", "gone", "tls.key: {}/gone: it cannot be read: no such file"),
    (".", "key", "tls.cert: {}/.: it is a directory"),
    ("cert", "fifo", "tls.key: {}/fifo: it is not a plain file"),
    ("text", "key", "tls.cert: {}/text: it has no PEM certificate"),
    ("key", "cert", "tls.cert: {}/key: it has no PEM certificate"),
    ("empty", "empty", "tls.cert: {}/empty: it has no PEM certificate"),
    ("cert", "text", "tls.key: {}/text: it has no PEM private key"),
    ("cert", "cert", "tls.key: {}/cert: it has no PEM private key"),
    ("cert", "der", "tls.key: {}/der: it has no PEM private key"),
    ("cert", "locked", "tls.key: {}/locked: it is encrypted; relayd asks for no password: openssl pkey"),
    ("cert", "other", "tls.key: {}/other: it is not the key of the certificate in tls.cert"),
    ("wrong-chain", "key", "tls.key: {}/key: it is not the key of the certificate in tls.cert"),
]


@pytest.mark.parametrize(("cert", "key", "said"), WRONG)
def test_says_which_file_is_wrong(folder, cert, key, said):
    with pytest.raises(SettingError) as caught:
        listener_context(tls(folder, cert, key))
    assert str(caught.value).startswith(said.format(folder))


def test_what_an_operator_should_know(folder):
    old = tls(folder, "old.pem", "old.pem")
    (folder / "old.pem").chmod(0o644)
    listener_context(old)
    expired, readable = remarks_on_pair(old, NOW)
    assert str(expired).startswith(f"tls.cert: {folder}/old.pem: the certificate has expired: 20")
    assert "chmod o-r" in str(readable)
    assert len(list(remarks_on_pair(old, NOW - DAY))) == 1
