# SPDX-License-Identifier: Apache-2.0
"""Signatures of images: which are accepted, and why others are refused."""

import logging
import re
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, padding
from hypothesis import given
from hypothesis import strategies as st
from openstack.image.image_signer import ImageSigner as ClientSigner

from cyborg import exception
from cyborg.clients.image_signature import ImageCertificates
from cyborg.drivers.host import LocalHost
from cyborg.tests.fixtures.image_signer import HASHES, ImageSigner, Key, rsa_key

DATA: Final = bytes(range(256)) * 4096
IMAGE: Final = "8d2b6a0e-6c8b-4a0e-9a51-0f5c6f0c7b11"
NAMES: Final = (
    "img_signature",
    "img_signature_hash_method",
    "img_signature_key_type",
    "img_signature_certificate_uuid",
)
DAY: Final = 86400
JSON: Final = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())


def trusted(_path: str) -> str | None:
    """Say that only root can change a path, which is never so for the directories of tests."""
    return None


@pytest.fixture
def verify(tmp_path: Path) -> Callable[..., None]:
    """Verify the signature of data with the certificates in tmp_path; ``days`` pass before."""

    def verify(data: bytes, properties: dict[str, Any], days: int = 0) -> None:
        certificates = ImageCertificates(tmp_path, trusted, clock=lambda: time.time() + days * DAY)
        image = tmp_path / "image.part"
        image.write_bytes(data)
        certificates.signature(IMAGE, properties).verify(image)

    return verify


@pytest.fixture
def reason(verify: Callable[..., None]) -> Callable[..., str]:
    """Return why a signature is refused."""

    def reason(properties: dict[str, Any], data: bytes = DATA, days: int = 0) -> str:
        with pytest.raises(exception.ImageRefused) as caught:
            verify(data, properties, days)
        sentence = str(caught.value)
        assert sentence.startswith(f"Image {IMAGE} cannot be loaded: ")
        # What is wrong, and what to do.
        assert "; " in sentence
        assert "\n" not in sentence
        return sentence

    return reason


@pytest.mark.parametrize("method", HASHES)
@pytest.mark.parametrize(
    "key",
    [rsa_key(), rsa_key(3072), *map(ec.generate_private_key, (ec.SECP384R1(), ec.SECP521R1()))],
    ids=["RSA-2048", "RSA-3072", "P-384", "P-521"],
)
def test_data_that_a_trusted_certificate_signed_is_accepted(
    tmp_path: Path, verify: Callable[..., None], key: Key, method: str
) -> None:
    verify(DATA, ImageSigner(tmp_path, key).properties(DATA, method))


def test_signature_of_the_openstack_client_is_accepted(
    tmp_path: Path, verify: Callable[..., None]
) -> None:
    signer, image = ImageSigner(tmp_path), tmp_path / "image"
    (tmp_path / "key").write_bytes(
        signer.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    image.write_bytes(DATA)
    client = ClientSigner()
    client.load_private_key(str(tmp_path / "key"))
    with image.open("rb") as file:
        signature = client.generate_signature(file)
    verify(DATA, signer.properties(DATA, img_signature=b64encode(signature).decode()))


@pytest.mark.parametrize("key", [rsa_key(), ec.generate_private_key(ec.SECP384R1())])
def test_other_data_or_signature_is_refused(
    tmp_path: Path, reason: Callable[..., str], key: Key
) -> None:
    signer = ImageSigner(tmp_path, key)
    properties = signer.properties(DATA)
    sentence = reason(properties, bytes([DATA[0] ^ 1]) + DATA[1:])
    assert "img_signature does not match its data" in sentence
    assert str(signer.path) in sentence
    assert "does not match" in reason(properties, DATA + b"\0")
    assert "does not match" in reason(properties, b"")
    signature = bytearray(b64decode(properties["img_signature"] or ""))
    signature[-1] ^= 1
    for other in (bytes(signature), bytes(signature[:-1]), bytes(len(signature)), b"x"):
        changed = {**properties, "img_signature": b64encode(other).decode()}
        assert "does not match" in reason(changed)


def test_signature_by_another_key_is_refused(tmp_path: Path, reason: Callable[..., str]) -> None:
    signer, other = ImageSigner(tmp_path), ImageSigner(tmp_path, rsa_key(3072))
    properties = signer.properties(DATA, img_signature_certificate_uuid=other.certificate_uuid)
    assert "does not match" in reason(properties)


def test_signature_over_another_hash_or_with_another_padding_is_refused(
    tmp_path: Path, reason: Callable[..., str]
) -> None:
    signer = ImageSigner(tmp_path)
    properties = signer.properties(DATA, img_signature_hash_method="SHA-512")
    assert "does not match" in reason(properties)
    mgf = padding.MGF1(hashes.SHA256())
    for scheme in (
        padding.PSS(mgf, padding.PSS.DIGEST_LENGTH),
        padding.PSS(mgf, 0),
        padding.PSS(padding.MGF1(hashes.SHA512()), padding.PSS.MAX_LENGTH),
        padding.PKCS1v15(),
    ):
        signature = rsa_key().sign(DATA, scheme, hashes.SHA256())
        properties = signer.properties(DATA, img_signature=b64encode(signature).decode())
        assert "does not match" in reason(properties)


@pytest.mark.parametrize("name", NAMES)
def test_missing_property_is_named(tmp_path: Path, reason: Callable[..., str], name: str) -> None:
    properties = ImageSigner(tmp_path).properties(DATA)
    for value in (None, ""):
        sentence = reason({**properties, name: value})
        assert f"it has no property {name}, and [glance] verify_image_signatures" in sentence
    del properties[name]
    assert f"it has no property {name}," in reason(properties)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1, 0, True, ["SHA-256"], {"a": "b"}, 1.5])
def test_property_that_is_no_text_is_refused(
    tmp_path: Path, reason: Callable[..., str], name: str, value: object
) -> None:
    properties = ImageSigner(tmp_path).properties(DATA)
    assert f"its property {name} is not a text" in reason({**properties, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("img_signature_hash_method", word) for word in ("MD5", "SHA-1", "sha-256", "x" * 999)),
        *(
            ("img_signature_key_type", word)
            for word in ("DSA", "ECC_SECT571K1", "ECC_SECP256R1", "rsa-pss", "RSA\n-PSS")
        ),
    ],
)
def test_unknown_method_is_refused_with_the_accepted_methods(
    tmp_path: Path, reason: Callable[..., str], name: str, value: str
) -> None:
    sentence = reason(ImageSigner(tmp_path).properties(DATA, **{name: value}))
    assert f"its {name} {value[:80]!r} is not one of " in sentence
    assert ("SHA-224, SHA-256" if name.endswith("method") else "RSA-PSS;") in sentence
    assert len(sentence) < 400


@pytest.mark.parametrize("value", ["%%%%", "abc", "YQ==\nYQ==", "é", " YQ=="])
def test_signature_that_is_not_base64_is_refused(
    tmp_path: Path, reason: Callable[..., str], value: str
) -> None:
    properties = ImageSigner(tmp_path).properties(DATA, img_signature=value)
    assert "img_signature is not base64" in reason(properties)


@pytest.mark.parametrize(
    "value",
    [
        *("../x", "/etc/passwd", ".", "..", "x", "*", f"{IMAGE}/../x", f"../{IMAGE}", f"{IMAGE}\0"),
        *(f"{IMAGE}\n", f" {IMAGE}", f"{{{IMAGE}}}", f"urn:uuid:{IMAGE}", IMAGE.replace("-", "")),
        *(f"{IMAGE}.pem", IMAGE.replace("8", "٨"), "../" * 9999),
    ],
)
def test_certificate_id_that_is_not_a_uuid_never_becomes_a_path(tmp_path: Path, value: str) -> None:
    paths: list[str] = []
    certificates = ImageCertificates(tmp_path / "directory", lambda path: paths.append(path))
    properties = ImageSigner(tmp_path).properties(DATA, img_signature_certificate_uuid=value)
    with pytest.raises(exception.ImageRefused, match=r"is not a UUID; set it") as caught:
        certificates.signature(IMAGE, properties)
    assert paths == []
    assert len(str(caught.value)) < 500


def test_certificate_id_may_have_upper_case(tmp_path: Path, verify: Callable[..., None]) -> None:
    signer = ImageSigner(tmp_path)
    upper = signer.certificate_uuid.upper()
    verify(DATA, signer.properties(DATA, img_signature_certificate_uuid=upper))


def test_certificate_that_this_host_does_not_have_is_named(
    tmp_path: Path, reason: Callable[..., str]
) -> None:
    signer = ImageSigner(tmp_path)
    signer.path.unlink()
    sentence = reason(signer.properties(DATA))
    assert f"its certificate {signer.path} cannot be read: " in sentence
    assert "No such file" in sentence
    # The real host has the error before the file is read.
    certificates = ImageCertificates(Path("/nonexistent"), LocalHost().writable_by_others)
    with pytest.raises(exception.ImageRefused, match="cannot be read: No such file"):
        certificates.signature(IMAGE, signer.properties(DATA))


def test_certificate_outside_of_its_time_is_refused(
    tmp_path: Path, reason: Callable[..., str]
) -> None:
    signer = ImageSigner(tmp_path)
    properties = signer.properties(DATA)
    pattern = r"its certificate \S+ {} 20\d\d-\d\d-\d\d \d\d:\d\d UTC; "
    assert re.search(pattern.format("has expired on"), reason(properties, days=2))
    assert re.search(pattern.format("is not valid before"), reason(properties, days=-2))


def test_key_usage_must_allow_signatures(tmp_path: Path, verify: Callable[..., None]) -> None:
    verify(DATA, ImageSigner(tmp_path, may_sign=True).properties(DATA))
    with pytest.raises(exception.ImageRefused, match=r"key usage .* does not allow digital"):
        verify(DATA, ImageSigner(tmp_path, may_sign=False).properties(DATA))


@pytest.mark.parametrize(
    ("key", "key_type"),
    [
        (rsa_key(), "ECC_SECP384R1"),
        (ec.generate_private_key(ec.SECP384R1()), "ECC_SECP521R1"),
        (ec.generate_private_key(ec.SECP384R1()), "RSA-PSS"),
        (ec.generate_private_key(ec.SECP256R1()), "ECC_SECP384R1"),
        (ed25519.Ed25519PrivateKey.generate(), "RSA-PSS"),
        (dsa.generate_private_key(2048), "RSA-PSS"),
    ],
)
def test_key_must_be_of_the_type_of_the_property(
    tmp_path: Path, reason: Callable[..., str], key: Any, key_type: str
) -> None:
    properties = ImageSigner(tmp_path, key).properties(DATA, img_signature_key_type=key_type)
    assert f"is not of the type {key_type}" in reason(properties)


def test_short_rsa_key_is_refused(tmp_path: Path, reason: Callable[..., str]) -> None:
    sentence = reason(ImageSigner(tmp_path, rsa_key(1024)).properties(DATA))
    assert "has 1024 bits, and at least 2048 are needed" in sentence


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\xff\0", b"-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n"),
        b"-----BEGIN PRIVATE KEY-----\nYQ==\n-----END PRIVATE KEY-----\n",
    ],
)
def test_file_without_certificate_is_refused(
    tmp_path: Path, reason: Callable[..., str], content: bytes
) -> None:
    signer = ImageSigner(tmp_path)
    signer.path.write_bytes(content)
    assert f"{signer.path} has no X.509 certificate in PEM" in reason(signer.properties(DATA))


def test_certificate_with_malformed_extensions_is_refused(
    tmp_path: Path, reason: Callable[..., str]
) -> None:
    signer = ImageSigner(tmp_path, may_sign=True)
    certificate = x509.load_pem_x509_certificate(signer.path.read_bytes())
    content = certificate.public_bytes(serialization.Encoding.DER)
    # Both extensions are key usages: the identifier of the second ended in 0e.
    content = content.replace(b"\x55\x1d\x0e", b"\x55\x1d\x0f")
    signer.path.write_text(ssl.DER_cert_to_PEM_cert(content))
    assert "the extensions of its certificate" in reason(signer.properties(DATA))


def test_certificate_that_others_can_change_does_not_count(tmp_path: Path) -> None:
    signer = ImageSigner(tmp_path)
    properties = signer.properties(DATA)
    for path in (str(signer.path), str(tmp_path), "/"):
        certificates = ImageCertificates(
            tmp_path, {str(signer.path): path, str(tmp_path): path}.get
        )
        sentence = re.escape(f"others than root can change {path}; make root its owner")
        with pytest.raises(exception.ImageRefused, match=sentence):
            certificates.signature(IMAGE, properties)
        with pytest.raises(exception.ConfigError, match=rf"\[glance\] image_cert.*{sentence}"):
            certificates.check()
    # Every user may create files in /tmp, so that nothing below it belongs to root alone.
    certificates = ImageCertificates(tmp_path, LocalHost().writable_by_others)
    signer.path.chmod(0o666)
    with pytest.raises(exception.ImageRefused, match="others than root can change /"):
        certificates.signature(IMAGE, properties)


def test_missing_directory_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        certificates = ImageCertificates(tmp_path / name, trusted)
        with pytest.raises(exception.ConfigError) as caught:
            certificates.check()
        assert str(caught.value).startswith(
            f"Option [glance] image_certificates cannot have '{tmp_path / name}': it is no "
            "directory; create it, or "
        )


@pytest.mark.parametrize("path", ["", "certificates", "../certificates"])
def test_relative_path_is_an_error_of_the_configuration(path: str) -> None:
    with pytest.raises(exception.ConfigError, match="it is no absolute path"):
        ImageCertificates(Path(path), trusted).check()


def test_directory_without_certificate_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = ImageCertificates(tmp_path, trusted)
    certificates.check()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(tmp_path) in record.getMessage()
    caplog.clear()
    ImageSigner(tmp_path)
    certificates.check()
    assert caplog.records == []


@given(properties=st.dictionaries(st.sampled_from(NAMES), JSON))
def test_any_properties_are_refused_without_a_fault(properties: dict[str, Any]) -> None:
    values = ("YQ==", "SHA-256", "RSA-PSS", IMAGE)
    complete = {**dict(zip(NAMES, values, strict=True)), **properties}
    with pytest.raises(exception.ImageRefused):
        ImageCertificates(Path("/nonexistent"), trusted).signature(IMAGE, complete)
