"""The keys of a run: nobody else can read them, they hold as long as the run may take, and they end with it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509

from hpcml.kinds.dask.node.security import tls
from hpcml.kinds.dask.node.security.key_proof import read_key
from hpcml.node import shared_files
from hpcml.paths import AttemptPaths, RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> AttemptPaths:
    return RunPaths(tmp_path / "run").attempt(0)


def test_only_the_user_can_read_them(paths: AttemptPaths) -> None:
    paths.secret.mkdir(parents=True)
    paths.secret.chmod(0o755)
    tls.make_certificate(paths, 3600)
    tls.make_data_key(paths)
    token = tls.make_token(paths)
    assert paths.jupyter_token.read_text() == token
    assert paths.secret.stat().st_mode & 0o777 == 0o700
    files = sorted(paths.secret.iterdir())
    assert {paths.key, paths.certificate, paths.data_key, paths.jupyter_token} == set(files)
    assert [oct(path.stat().st_mode & 0o777) for path in files] == ["0o600"] * 4
    with pytest.raises(FileExistsError):
        tls.make_data_key(paths)
    assert len(read_key(paths.data_key)) == 32
    (link := paths.secret / "link").symlink_to(paths.data_key)
    with pytest.raises(OSError, match="symbolic links"):
        read_key(link)


def test_the_certificate_holds_on_nodes_whose_clocks_differ(paths: AttemptPaths) -> None:
    tls.make_certificate(paths, 3600)
    made = x509.load_pem_x509_certificate(paths.certificate.read_bytes())
    now = dt.datetime.now(dt.UTC)
    assert made.not_valid_before_utc < now - dt.timedelta(hours=23)
    assert now < made.not_valid_after_utc <= now + dt.timedelta(seconds=3600)


def test_they_go_with_the_attempt(paths: AttemptPaths) -> None:
    tls.make_certificate(paths, 3600)
    tls.make_data_key(paths)
    tls.make_token(paths)
    (paths.secret / "relay-1").mkdir()
    (paths.secret / "relay-1" / "key").write_text("of a tunnel")
    shared_files.remove_secrets(paths)
    assert list(paths.secret.iterdir()) == []
    shared_files.remove_secrets(paths)


def test_every_role_shows_the_certificate_and_takes_no_plain_connection(paths: AttemptPaths) -> None:
    tls.make_certificate(paths, 3600)
    made = tls.security(paths)
    assert made.require_encryption
    for role in ("scheduler", "worker", "client"):
        arguments = made.get_tls_config_for_role(role)
        assert arguments == {"ca_file": str(paths.certificate), "cert": str(paths.certificate), "key": str(paths.key),
                             "ciphers": None}  # fmt: skip
    settings = tls.dask_settings(paths, "tls://10.0.0.1:1", "tcp")
    assert settings["distributed.comm.require-encryption"] is True
