"""Keys and trust in Python, for ``Registry.maintenance.sign`` and ``require_signature=``.

Example::

    key = ck.signing.SigningKey.new("alice")
    public = key.save("alice.pem")
    registry.maintenance.sign("digits/*", key)
    production = ck.Registry.open("parts", require_signature=public)
"""

from compatkit.registry.signing.checks import Accept, SignatureVerdict, require
from compatkit.registry.signing.keys import PublicKey
from compatkit.registry.signing.private_keys import KeyWarning, SigningKey
from compatkit.registry.signing.trust import Distrust, Folder, Trusted, TrustWarning

Verdict = SignatureVerdict

__all__ = [
    "Accept",
    "Distrust",
    "Folder",
    "KeyWarning",
    "PublicKey",
    "SigningKey",
    "TrustWarning",
    "Trusted",
    "Verdict",
    "require",
]
