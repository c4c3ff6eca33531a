"""Who vouches for what."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from compatkit.registry.signing.trust import Trust
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.registry.signing.signer import SigningKey
    from compatkit.registry.signing.verification import Verdict
    from compatkit.registry.signing.vouching import Signed


class Signing:
    """Signatures of components.

    Attributes:
        store: The files; it stores and finds, and knows no network.
    """

    store: Store

    def sign(
        self,
        references: str | Iterable[str],
        key: SigningKey | str | os.PathLike[str],
        *,
        expires: str | None = None,
        named: bool = True,
        every: bool = False,
    ) -> list[Signed]:
        """Sign components, as the names and versions that they have here; see docs/signatures.md.

        Args:
            references: One or several; a name may be a glob, which means the latest version of each. A bare digest is
                signed without a name.
            key: A private key, or its file (a passphrase is taken from COMPATKIT_KEY_PASSPHRASE).
            expires: ``"365d"``, ``"2027-01-31"``; None ends with the key.
            named: False vouches for the bytes under any name.
            every: Sign all versions of a name or glob that were not withdrawn, and not only the latest.

        Returns:
            One signature of each; one of this key that says as much and lasts as long is kept, and not made again.

        Raises:
            NotFound: A reference means nothing.
            KeyFileError: The key cannot be used; its subclasses say why.
            IntegrityError: A manifest is damaged.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.registry.signing import moments
        from compatkit.registry.signing.signer import SigningKey
        from compatkit.registry.signing.vouching import sign

        used = key if isinstance(key, SigningKey) else SigningKey.load(key)
        ends = None if expires is None else moments.until(expires)
        return sign(self.store, references, used, expires=ends, named=named, every=every)

    def signatures(self, reference: str) -> list[Verdict]:
        """Return what the signatures of a component say of themselves; none is verified, and none is believed."""
        from compatkit.registry.signing.vouching import statements

        return statements(self.store, reference)

    def verify_signatures(self, reference: str, trusted: Trust = True) -> list[Verdict]:
        """Return what was found out about each signature of a component, at least one of which counts.

        Args:
            reference: A name means that it must be signed as this name and version; a bare digest means the bytes.
            trusted: Whose signatures count, as in ``open``.

        Raises:
            Unsigned, UnknownSigner, BadSignature, SignatureExpired, ...: No signature counts; all are subclasses of
                SignatureError, and say what to do.
            KeyFileError: It cannot be found out whom to trust.
            MissingDependency: ``cryptography`` is not installed.
        """
        from compatkit.registry.signing.vouching import verify

        return verify(self.store, reference, trusted)
