"""Authorities that a file names are trusted where strict checks refuse them, and what their certificates lack is said."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import trustme

from gateway.config.authorities import imperfections, trusting

NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
COMPLETE = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign", "subjectKeyIdentifier=hash")


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this Python begin as 3.13 does."""
    create = ssl.create_default_context

    def strict(*, cafile: Path) -> ssl.SSLContext:
        context = create(cafile=cafile)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


def openssl(folder: Path, *arguments: str) -> int:
    (folder / "openssl.cnf").write_text("[req]\ndistinguished_name=dn\n[dn]\n")
    done = subprocess.run(
        ["openssl", *arguments], cwd=folder, capture_output=True, env=os.environ | {"OPENSSL_CONF": ""}
    )
    return done.returncode


def authority(folder: Path, *extensions: str, name: str = "ca") -> Path:
    """Make the certificate of an authority, with these extensions alone."""
    added = [word for extension in extensions for word in ("-addext", extension)]
    new = (*NEW, "-keyout", f"{name}.key", "-out", f"{name}.pem")
    assert openssl(folder, "req", "-config", "openssl.cnf", "-x509", *new, "-subj", "/O=Firm/CN=Our CA", *added) == 0
    return folder / f"{name}.pem"


def refused(ca: Path, *, strictly: bool) -> bool:
    """Return whether OpenSSL refuses a certificate that the authority has signed."""
    folder = ca.parent
    new = (*NEW, "-keyout", "leaf.key", "-out", "leaf.csr")
    assert openssl(folder, "req", "-config", "openssl.cnf", *new, "-subj", "/CN=upstream") == 0
    (folder / "leaf.ext").write_text("authorityKeyIdentifier=keyid,issuer\nsubjectAltName=DNS:upstream\n")
    signed = ("-CA", ca.name, "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "leaf.ext", "-out", "leaf.pem")
    assert openssl(folder, "x509", "-req", "-in", "leaf.csr", *signed) == 0
    return openssl(folder, "verify", *(["-x509_strict"] if strictly else []), "-CAfile", ca.name, "leaf.pem") != 0


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ((), ""),
        (("keyUsage",), "Key Usage"),
        (("subjectKeyIdentifier",), "a Subject Key Identifier"),
        (("critical,",), "critical Basic Constraints"),
        (("keyUsage", "subjectKeyIdentifier"), "Key Usage and a Subject Key Identifier"),
    ],
)
def test_what_a_certificate_lacks_is_what_openssl_refuses(tmp_path: Path, missing: tuple[str, ...], said: str) -> None:
    extensions = [each for each in COMPLETE if not each.startswith(missing or ("no",))]
    if "critical," in missing:
        extensions[0] = extensions[0].replace("critical,", "")
    if "subjectKeyIdentifier" in missing:
        extensions.append("subjectKeyIdentifier=none")  # otherwise it is made
    ca = authority(tmp_path, *extensions)
    context = trusting(ca)
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert list(imperfections(context)) == ([f"the certificate of 'Our CA' lacks {said}"] if said else [])
    assert refused(ca, strictly=True) == bool(said)
    assert not refused(ca, strictly=False)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_each_certificate_of_a_file_is_looked_at(tmp_path: Path) -> None:
    good, bad = (
        authority(tmp_path, *COMPLETE),
        authority(tmp_path, COMPLETE[0], "subjectKeyIdentifier=none", name="other"),
    )
    both = tmp_path / "both.pem"
    both.write_bytes(good.read_bytes() + bad.read_bytes())
    (said,) = imperfections(trusting(both))
    assert said == "the certificate of 'Our CA' lacks Key Usage and a Subject Key Identifier"


def test_an_authority_that_lacks_nothing_is_not_warned_of(tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
    intermediate = trustme.CA().create_child_ca()
    intermediate.cert_pem.write_to_path(tmp_path / "intermediate.pem")
    for name in ("ca.pem", "intermediate.pem"):
        assert list(imperfections(trusting(tmp_path / name))) == []


def test_a_file_without_a_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for name in ("empty.pem", "none.pem"):
        with pytest.raises(OSError, match=r"."):
            trusting(tmp_path / name)
