"""Keys, certificates, tokens and kubeconfig files of one control plane.

One authority signs the API server's and etcd's certificates, so clients verify TLS as they would in production and no
other user of the machine can talk to etcd. Everything lives in the control plane's own directory, readable by its
owner only, and is reused when a control plane starts again on a kept directory.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVICE_CIDR = "10.96.0.0/16"
_SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
_SERVER_ADDRESSES = ("127.0.0.1", "10.96.0.1")  # loopback, and the Service `kubernetes` as pods will see it
_SERVERS = ("apiserver", "etcd", "proxy")  # the proxy is a test's, before the API server
NODE_NAME = "node"
# Kubernetes authorises these users by name; each is the least that its component needs.
_COMPONENT_USERS = {
    "kube-scheduler": ("system:kube-scheduler", ""),
    "kube-proxy": ("system:kube-proxy", ""),
    "coredns": ("testbed:coredns", ""),
    "kwok": ("testbed:kwok", ""),
    "kubelet": (f"system:node:{NODE_NAME}", ",system:nodes"),
}
_VALIDITY = datetime.timedelta(days=365)


def write_private(path: Path, data: bytes | str) -> Path:
    """Write a file that only this user may read, in one step."""
    part = path.with_name(path.name + ".part")
    part.touch(mode=0o600)
    part.write_bytes(data.encode() if isinstance(data, str) else data)
    part.replace(path)
    return path


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _builder(common_name: str, now: datetime.datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + _VALIDITY)
    )


@dataclass(frozen=True)
class Authority:
    """A certificate authority and the folder its files go to."""

    directory: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, directory: Path, now: datetime.datetime) -> Authority:
        """Make a new authority; its certificate is ``ca.crt``."""
        key = ec.generate_private_key(ec.SECP256R1())
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = _builder("grfleet-testbed-ca", now).public_key(key.public_key())
        builder = builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "grfleet-testbed-ca")]))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(usage, critical=True).add_extension(identifier, critical=False)
        certificate = builder.sign(key, hashes.SHA256())
        write_private(directory / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
        return cls(directory, key, certificate)

    def issue(self, name: str, now: datetime.datetime) -> None:
        """Write ``NAME.crt`` and ``NAME.key``, good for a loopback server and for a client."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(item) for item in _SERVER_NAMES]
        names += [x509.IPAddress(ipaddress.ip_address(item)) for item in _SERVER_ADDRESSES]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = (
            _builder(name, now)
            .public_key(key.public_key())
            .issuer_name(self.certificate.subject)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(authority, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        write_private(self.directory / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))
        write_private(self.directory / f"{name}.key", _pem(key))


@dataclass(frozen=True)
class Credentials:
    """Files and tokens of one control plane."""

    directory: Path
    admin_token: str
    controller_manager_token: str
    component_tokens: Mapping[str, str]  # of the parts of a node, by name

    def file(self, name: str) -> Path:
        """Path of one of the files, such as ``ca.crt`` or ``etcd.key``."""
        return self.directory / name


def prepare(directory: Path, *, now: datetime.datetime) -> Credentials:
    """The credentials in `directory`, made when it holds none that are still valid at `now`."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    done = directory / "tokens.json"
    try:
        kept = json.loads(done.read_text())
        authority = x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
        complete = all((directory / f"{name}.crt").exists() for name in _SERVERS)
        if complete and authority.not_valid_after_utc > now + datetime.timedelta(days=1):
            return Credentials(
                directory, kept["admin"], kept["controller-manager"], {name: kept[name] for name in _COMPONENT_USERS}
            )
    except (OSError, ValueError, KeyError):
        pass  # new, or not finished: make all of it
    authority_files = Authority.create(directory, now)
    for name in _SERVERS:
        authority_files.issue(name, now)
    if not (directory / "service-accounts.key").exists():  # kept tokens stay valid across a renewal
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        write_private(directory / "service-accounts.pub", public)
        write_private(directory / "service-accounts.key", _pem(key))
    tokens = {name: secrets.token_urlsafe(24) for name in ("admin", "controller-manager", *_COMPONENT_USERS)}
    components = [f"{tokens[name]},{user},{user}{group}\n" for name, (user, group) in _COMPONENT_USERS.items()]
    write_private(
        directory / "tokens.csv",
        f'{tokens["admin"]},admin,admin,"system:masters"\n'
        f"{tokens['controller-manager']},system:kube-controller-manager,kube-controller-manager\n" + "".join(components),
    )
    write_private(done, json.dumps(tokens))
    return Credentials(
        directory, tokens["admin"], tokens["controller-manager"], {name: tokens[name] for name in _COMPONENT_USERS}
    )


def write_kubeconfig(
    path: Path, *, url: str, ca_file: Path, token: str, user: str, namespace: str = "default", server_name: str | None = None
) -> Path:
    """Write a self-contained kubeconfig (JSON, which is YAML) with the authority inside it.

    `server_name` is the name to expect in the server's certificate when the address is not one of those in it.
    """
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(ca_file.read_bytes()).decode()}
    if server_name is not None:
        cluster["tls-server-name"] = server_name
    context = {"cluster": "grfleet-testbed", "user": user, "namespace": namespace}
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "grfleet-testbed", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "grfleet-testbed", "context": context}],
        "current-context": "grfleet-testbed",
    }
    return write_private(path, json.dumps(value, indent=2) + "\n")
