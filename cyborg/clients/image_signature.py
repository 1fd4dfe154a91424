# SPDX-License-Identifier: Apache-2.0
"""Signatures of images: whether a certificate that this host trusts has signed the data.

The four properties and their values are those that Nova and Glance use
(https://docs.openstack.org/glance/latest/user/signature.html). Their library, cursive, reads
certificates from the key manager; here they are files that only root can change. Of the key types,
DSA is not accepted, because FIPS 186-5 withdrew it, nor are the binary curves (``ECC_SECT...``),
which cryptography removed in its release 47.
"""

import hashlib
import logging
import os
import re
import time
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from cyborg import exception

LOG = logging.getLogger(__name__)

_SIGNATURE: Final = "img_signature"
_HASH_METHOD: Final = "img_signature_hash_method"
_KEY_TYPE: Final = "img_signature_key_type"
_CERTIFICATE: Final = "img_signature_certificate_uuid"
_HASHES: Final[Mapping[str, hashes.HashAlgorithm]] = {
    "SHA-224": hashes.SHA224(),
    "SHA-256": hashes.SHA256(),
    "SHA-384": hashes.SHA384(),
    "SHA-512": hashes.SHA512(),
}
_RSA: Final = "RSA-PSS"
_KEY_TYPES: Final = ("ECC_SECP384R1", "ECC_SECP521R1", _RSA)
_MIN_RSA_BITS: Final = 2048
_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: What cryptography raises for keys and extensions that it cannot read.
_MALFORMED: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
#: How many characters of a property a message repeats.
_SHOWN: Final = 80
_SIGN_AGAIN: Final = "sign the image and set its four img_signature properties"
_OTHER_CERTIFICATE: Final = "sign the image with the key of another certificate"
_ROOT_ONLY: Final = "make root its owner and remove write permission for all other users"

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class Signature:
    """The signature that the data of an image must match; its certificate is valid."""

    image_uuid: str
    value: bytes
    algorithm: hashes.HashAlgorithm
    key: PublicKey
    certificate: Path

    def verify(self, file: Path) -> None:
        """Raise exception.ImageRefused if the content of a file does not match the signature."""
        with open(file, "rb") as data:
            digest = hashlib.file_digest(data, self.algorithm.name).digest()
        prehashed = Prehashed(self.algorithm)
        try:
            if isinstance(self.key, rsa.RSAPublicKey):
                # OpenSSL takes PSS.MAX_LENGTH for any length when it verifies.
                salt = padding.calculate_max_pss_salt_length(self.key, self.algorithm)
                pss = padding.PSS(padding.MGF1(self.algorithm), salt)
                self.key.verify(self.value, digest, pss, prehashed)
            else:
                self.key.verify(self.value, digest, ec.ECDSA(prehashed))
        except InvalidSignature as fault:
            raise exception.ImageRefused(
                image=self.image_uuid,
                reason=f"its {_SIGNATURE} does not match its data and the certificate "
                f"{self.certificate}; if the data is what you want to load, {_SIGN_AGAIN}",
            ) from fault


class ImageCertificates:
    """The certificates whose signatures count: the files ``UUID.pem`` of a directory of this host.

    ``directory`` is [glance] image_certificates. ``writable_by_others`` returns the file or
    directory by which others than root can change a path, or None; see ``drivers.host.Host``.
    ``clock`` returns seconds since the epoch. Files are read for each image, so new and removed
    certificates need no restart.
    """

    def __init__(
        self,
        directory: Path,
        writable_by_others: Callable[[str], str | None],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._directory = directory
        self._writable_by_others = writable_by_others
        self._clock = clock

    def check(self) -> None:
        """Log a warning if the directory has no certificate.

        Raises exception.ConfigError if it is no absolute path of a directory, or others than root
        can change it.
        """
        reason = None
        if not self._directory.is_absolute():
            reason = "it is no absolute path"
        elif not os.path.isdir(self._directory):
            reason = (
                "it is no directory; create it, or set [glance] verify_image_signatures = false"
            )
        elif (writable := self._writable_by_others(str(self._directory))) is not None:
            reason = f"others than root can change {writable}; {_ROOT_ONLY}"
        if reason is not None:
            raise exception.ConfigError(
                reason="Option [glance] image_certificates cannot have "
                f"{str(self._directory)!r}: {reason}."
            )
        if not any(self._directory.glob("*.pem")):
            LOG.warning(
                "No image can be loaded: [glance] verify_image_signatures is true, and the agent "
                "sees no certificate UUID.pem in %s. Copy the certificates of the signers there",
                self._directory,
            )

    def signature(self, image_uuid: str, properties: Mapping[str, Any]) -> Signature:
        """Return the signature of an image with these properties in Glance.

        Raises exception.ImageRefused if a property is missing or has a value that is not accepted,
        or if the certificate is missing, not valid now, or not for a key of this type.
        """
        refused = partial(exception.ImageRefused, image=image_uuid)
        for name in (_SIGNATURE, _HASH_METHOD, _KEY_TYPE, _CERTIFICATE):
            value = properties.get(name)
            if value is None or value == "":
                raise refused(
                    reason=f"it has no property {name}, and [glance] verify_image_signatures is "
                    f"true; {_SIGN_AGAIN}"
                )
            if not isinstance(value, str):
                raise refused(reason=f"its property {name} is not a text; {_SIGN_AGAIN}")
        for name, accepted in ((_HASH_METHOD, _HASHES), (_KEY_TYPE, _KEY_TYPES)):
            if properties[name] not in accepted:
                raise refused(
                    reason=f"its {name} {properties[name][:_SHOWN]!r} is not one of "
                    f"{', '.join(accepted)}; {_SIGN_AGAIN}"
                )
        try:
            value = b64decode(properties[_SIGNATURE], validate=True)
        except ValueError as fault:
            raise refused(
                reason=f"its {_SIGNATURE} is not base64 without line breaks; set it again, with "
                "the output of base64 -w 0"
            ) from fault
        certificate_uuid = properties[_CERTIFICATE].lower()
        # Nothing else may become part of a path.
        if _UUID.fullmatch(certificate_uuid) is None:
            raise refused(
                reason=f"its {_CERTIFICATE} {properties[_CERTIFICATE][:_SHOWN]!r} is not a UUID; "
                f"set it to the name of a file in {self._directory}, without .pem"
            )
        path = self._directory / f"{certificate_uuid}.pem"
        key = self._key(image_uuid, path, properties[_KEY_TYPE])
        return Signature(image_uuid, value, _HASHES[properties[_HASH_METHOD]], key, path)

    def _key(self, image_uuid: str, path: Path, key_type: str) -> PublicKey:
        """Return the key of a certificate that counts; raises exception.ImageRefused."""
        refused = partial(exception.ImageRefused, image=image_uuid)
        certificate = self._certificate(image_uuid, path)
        now = datetime.fromtimestamp(self._clock(), UTC)
        if now < certificate.not_valid_before_utc:
            raise refused(
                reason=f"its certificate {path} is not valid before "
                f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; wait until then, or check "
                "the clock of this host"
            )
        if now > certificate.not_valid_after_utc:
            raise refused(
                reason=f"its certificate {path} has expired on "
                f"{certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; sign the image with the "
                "key of a valid certificate"
            )
        try:
            key = certificate.public_key()
            may_sign = _may_sign(certificate)
        except _MALFORMED as fault:
            raise refused(
                reason=f"the key or the extensions of its certificate {path} cannot be read: "
                f"{fault}; {_OTHER_CERTIFICATE}"
            ) from fault
        if not may_sign:
            raise refused(
                reason=f"the key usage of its certificate {path} does not allow digital "
                f"signatures; {_OTHER_CERTIFICATE}"
            )
        if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey) or (
            key_type != _type(key)
        ):
            raise refused(
                reason=f"the key of its certificate {path} is not of the type {key_type} in "
                f"{_KEY_TYPE}; correct the property, or {_OTHER_CERTIFICATE}"
            )
        if isinstance(key, rsa.RSAPublicKey) and key.key_size < _MIN_RSA_BITS:
            raise refused(
                reason=f"the RSA key of its certificate {path} has {key.key_size} bits, and at "
                f"least {_MIN_RSA_BITS} are needed; {_OTHER_CERTIFICATE}"
            )
        return key

    def _certificate(self, image_uuid: str, path: Path) -> x509.Certificate:
        """Return a certificate that root gave this host; raises exception.ImageRefused."""
        refused = partial(exception.ImageRefused, image=image_uuid)
        try:
            writable = self._writable_by_others(str(path))
            # What others can change may even be no regular file.
            data = path.read_bytes() if writable is None else b""
        except (exception.HostError, OSError) as fault:
            cause = fault.fields["reason"] if isinstance(fault, exception.HostError) else fault
            raise refused(
                reason=f"its certificate {path} cannot be read: {cause}; if you trust its owner, "
                f"copy it to this path, otherwise {_SIGN_AGAIN}"
            ) from fault
        if writable is not None:
            raise refused(
                reason=f"its certificate {path} does not count: others than root can change "
                f"{writable}; {_ROOT_ONLY}"
            )
        try:
            return x509.load_pem_x509_certificate(data)
        except ValueError as fault:
            raise refused(
                reason=f"{path} has no X.509 certificate in PEM; replace the file"
            ) from fault


def _type(key: PublicKey) -> str:
    """Return the value of img_signature_key_type for a key."""
    return _RSA if isinstance(key, rsa.RSAPublicKey) else f"ECC_{key.curve.name.upper()}"


def _may_sign(certificate: x509.Certificate) -> bool:
    """Return whether the key usage of a certificate, if there is any, allows signatures of data."""
    try:
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    except x509.ExtensionNotFound:
        return True
    return usage.value.digital_signature
