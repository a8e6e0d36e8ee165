"""How etcd is spoken to besides its address: from the environment, by the names etcdctl has."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""  # files
    certificate: str = ""
    key: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "EtcdAccess":
        user, colon, password = environment.get("ETCDCTL_USER", "").partition(":")
        return cls(
            user,
            password if colon else environment.get("ETCDCTL_PASSWORD", ""),
            environment.get("ETCDCTL_CACERT", ""),
            environment.get("ETCDCTL_CERT", ""),
            environment.get("ETCDCTL_KEY", ""),
        )

    def context(self) -> ssl.SSLContext:
        """ConfigError: a file cannot be used."""
        named = self.ca
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                named = self.certificate
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ssl.SSLError) as why:
            reason = why.strerror or why
            raise ConfigError(f"{named}: cannot be used for TLS with etcd ({reason})") from why
        return context
