"""The keys of one attempt, for TLS and for UCX, and what each role and the script need to use them."""

from __future__ import annotations

import datetime as dt
import inspect
import os
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcml import safe_files
from hpcml.paths import AttemptPaths

if TYPE_CHECKING:
    from distributed import Security

EARLY = 86400.0  # seconds for which the certificate is valid before it was made: clocks of nodes differ
LATE = 3600.0  # seconds for which it is valid beyond the longest time that the run may take
BY_KEY = ("tcp", "ucx")  # protocols whose connections prove the run's key, and are not encrypted
_CONFIG_ROLES = ("scheduler", "worker", "client")
_PRELOAD = "hpcml.kinds.dask.node.security.client_preload"


def make_certificate(paths: AttemptPaths, lifetime: float) -> None:
    """Write the attempt's key and certificate, readable by the user alone; an OSError if they exist already.

    The authority has one member, itself: the certificate is self-signed, every role presents it and accepts nothing
    else, so who holds the key is in and nobody else is. It is P-256, made on the node when the job starts, and ends
    with the job: it is valid for ``lifetime`` seconds.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hpcml run")])
    now = dt.datetime.now(dt.UTC)
    uses = inspect.signature(x509.KeyUsage).parameters
    usage = x509.KeyUsage(**{use: use in ("digital_signature", "key_cert_sign") for use in uses})
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(seconds=EARLY))
        .not_valid_after(now + dt.timedelta(seconds=lifetime))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    _write_secret(paths.certificate, certificate.public_bytes(encoding))
    plain = serialization.NoEncryption()
    _write_secret(paths.key, key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain))


def make_data_key(paths: AttemptPaths) -> None:
    """Write the key with which both ends of a connection over UCX or TCP prove themselves."""
    _write_secret(paths.data_key, secrets.token_bytes(32))


def make_token(paths: AttemptPaths) -> str:
    """Write the token that lets a browser into JupyterLab, and return it."""
    token = secrets.token_urlsafe(32)
    _write_secret(paths.jupyter_token, token.encode())
    return token


def _write_secret(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    with os.fdopen(safe_files.create(path), "wb") as file:
        file.write(content)


def security(paths: AttemptPaths) -> Security:
    """Return Dask's security object for every role of this attempt."""
    from distributed import Security

    certificate, key = str(paths.certificate), str(paths.key)
    pairs = {f"tls_{role}_cert": certificate for role in _CONFIG_ROLES}
    pairs |= {f"tls_{role}_key": key for role in _CONFIG_ROLES}
    return Security(require_encryption=True, tls_ca_file=certificate, **pairs)


def dask_settings(paths: AttemptPaths, address: str, protocol: str) -> dict[str, Any]:
    """Return Dask's settings that let a client into the cluster, also one made inside a task.

    ``address`` is the scheduler's, ``protocol`` what the workers move data by. Settings of TLS do nothing for UCX and
    TCP but say that every other connection must be encrypted; there Dask has to import what authenticates the
    connections first, before modules that the user has it import.
    """
    settings: dict[str, Any] = {
        "scheduler-address": address,
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": str(paths.certificate),
    }
    for role in _CONFIG_ROLES:
        settings[f"distributed.comm.tls.{role}.cert"] = str(paths.certificate)
        settings[f"distributed.comm.tls.{role}.key"] = str(paths.key)
    if protocol in BY_KEY:
        import dask.config

        chosen = dask.config.get("distributed.client.preload", []) or []
        others = [chosen] if isinstance(chosen, str) else chosen
        settings["distributed.client.preload"] = [_PRELOAD, *(name for name in others if name != _PRELOAD)]
    return settings


OPEN = "open to all users who can connect"  # what the progress tells at once, not only on asking


def explanation(
    protocol: str, tcp_devices: set[str], *, gpus: bool, rdma: Collection[str] = (), group_memory: bool = False
) -> str:
    """Return who may talk to the run's processes, and what stays open, in one line (docs/security.md).

    ``tcp_devices`` are those on which others reach UCX's own TCP transport, ``rdma`` those of RDMA; with ``gpus`` NCCL,
    and raft-dask for some of cuML's estimators, open listeners of their own; ``group_memory``: UCX uses memory that the
    user's group may open.
    """
    if protocol == "ucx":
        protection = "mutual TLS to the scheduler; UCX connections need the run's key but are not encrypted"
        ways = [f"UCX's TCP on {' and '.join(sorted(tcp_devices))}"] if tcp_devices else []
        ways += [f"UCX's RDMA on {' and '.join(sorted(rdma))}"] if rdma else []
        ways += ["UCX's System V shared memory, open to your group (UCX_TLS)"] if group_memory else []
    elif protocol == "tcp":
        protection, ways = "mutual TLS to the scheduler; data over TCP needs the run's key but is not encrypted", []
    else:
        protection, ways = "mutual TLS", []
    ways += ["NCCL", "raft-dask"] if gpus else []
    return f"{protection}; {OPEN}: {', '.join(ways)}" if ways else protection


def client_environment(paths: AttemptPaths, address: str, protocol: str) -> dict[str, str]:
    """Return the variables with which a plain ``distributed.Client()`` finds and is let into the cluster.

    The dashboard has no address that a link could hold, so the client's link is the command that leads there.
    """
    link = {"distributed.dashboard.link": f"hpcml tunnel {paths.directory.parents[1].name}"}
    key = {"HPCML_DATA_KEY": f"{protocol}:{paths.data_key}"} if protocol in BY_KEY else {}
    return as_variables(dask_settings(paths, address, protocol) | link) | key


def as_variables(settings: dict[str, Any]) -> dict[str, str]:
    """Return settings of Dask's as the variables from which it reads them (dask.config.collect_env)."""
    return {f"DASK_{key.upper().replace('.', '__').replace('-', '_')}": str(value) for key, value in settings.items()}
