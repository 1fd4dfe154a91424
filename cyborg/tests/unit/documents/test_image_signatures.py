# SPDX-License-Identifier: Apache-2.0
"""The commands of ``image-signatures.rst`` make signatures that the agent accepts."""

import os
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

import cyborg
from cyborg import exception
from cyborg.clients.image_signature import ImageCertificates

PAGE: Final = (
    Path(cyborg.__file__).parent.parent / "doc" / "source" / "admin" / "image-signatures.rst"
)
DIRECTORY: Final = "/etc/cyborg/image-certificates"
BLOCKS: Final = re.findall(
    r"^\.\. code-block:: bash\n\n((?:   .*\n|\n)+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE
)
#: Commands that only record their arguments, one in a line. Only root could do what sudo is for.
RECORDER: Final = '#!/bin/sh\nprintf "%s\\n" "$@" >> {}\n'


@pytest.mark.parametrize("blocks", [(0, 1, 2, 3), (4, 1)], ids=["RSA", "elliptic curve"])
def test_documented_commands_sign_an_image(tmp_path: Path, blocks: tuple[int, ...]) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("openstack", "sudo"):
        (programs / name).write_text(RECORDER.format(tmp_path / f"{name}.arguments"))
        (programs / name).chmod(0o755)
    image = tmp_path / "image.gbs"
    image.write_bytes(bytes(range(256)) * 999)
    assert len(BLOCKS) == 5
    subprocess.run(
        ["bash", "-euc", "\n".join(BLOCKS[number] for number in blocks)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
    )
    *_, source, target = (tmp_path / "sudo.arguments").read_text().splitlines()
    assert (source, Path(target).parent) == ("signer.pem", Path(DIRECTORY))
    (tmp_path / source).rename(tmp_path / Path(target).name)
    arguments = (tmp_path / "openstack.arguments").read_text().splitlines()
    assert arguments[:3] == ["image", "set", "compress"]
    properties = dict(word.split("=", 1) for word in arguments if word.startswith("img_"))
    signature = ImageCertificates(tmp_path, lambda path: None).signature("compress", properties)
    signature.verify(image)
    image.write_bytes(image.read_bytes() + b"x")
    with pytest.raises(exception.ImageRefused, match="does not match"):
        signature.verify(image)
