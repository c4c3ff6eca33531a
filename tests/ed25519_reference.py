"""Ed25519 as RFC 8032 (section 5.1) spells it, in whole numbers: slow, and open to timing; for comparison only."""

from __future__ import annotations

import base64
import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
"""Affine x and y."""


def add(a: Point, b: Point) -> Point:
    """Return the sum of two points of -x^2 + y^2 = 1 + D x^2 y^2."""
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + product, -1, P)
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, -1, P)
    return x % P, y % P


def times(factor: int, point: Point) -> Point:
    total = (0, 1)
    while factor:
        if factor & 1:
            total = add(total, point)
        point, factor = add(point, point), factor >> 1
    return total


def base() -> Point:
    """Return the point with y = 4/5 and even x."""
    y = 4 * pow(5, -1, P) % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    return (x if x % 2 == 0 else P - x), y


B = base()


def encoded(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def expanded(seed: bytes) -> tuple[int, bytes]:
    """Return the secret number and the prefix of the nonces."""
    digest = hashlib.sha512(seed).digest()
    number = int.from_bytes(digest[:32], "little") & (2**254 - 8) | 2**254
    return number, digest[32:]


def public(seed: bytes) -> bytes:
    """Return the public key of a secret one."""
    return encoded(times(expanded(seed)[0], B))


def sign(seed: bytes, message: bytes) -> bytes:
    """Return the one signature that a key makes of a message."""
    number, prefix = expanded(seed)
    key = public(seed)
    nonce = int.from_bytes(hashlib.sha512(prefix + message).digest(), "little") % ORDER
    point = encoded(times(nonce, B))
    challenge = int.from_bytes(hashlib.sha512(point + key + message).digest(), "little")
    return point + ((nonce + challenge * number) % ORDER).to_bytes(32, "little")


def der(seed: bytes) -> bytes:
    """Return a secret key as RFC 8410 puts it into PKCS #8."""
    return bytes.fromhex("302e020100300506032b657004220420") + seed


def pem(seed: bytes) -> bytes:
    """Return a secret key as a file."""
    body = base64.b64encode(der(seed)).decode()
    return f"-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----\n".encode()
