"""Names exposures so that nobody can guess an id, and only the user who was shown it can report an outcome.

An id is 32 hexadecimal digits: the second of the answer, so that ids in order are quick to index; 56 random
bits; and 40 bits of a hash of all that and of the user, with a key that only routers have. Rows without a
unit are nobody's, so their hash is that of "".
"""

import hmac
import re
import secrets
import time
from hashlib import blake2b

ID = re.compile("[0-9a-f]{32}")
NUM_RANDOM = 14  # hexadecimal digits of an id
NUM_DRAWN = 256  # ids whose random digits are asked of the system together, since each question takes longer


class ExposureIds:
    """Makes and checks ids; routers with the same key take each other's. One thread makes them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._random: list[str] = []

    def make(self, user: str) -> str:
        """Returns a new id for an answer to the user."""
        if not self._random:
            drawn = secrets.token_hex(NUM_DRAWN * NUM_RANDOM // 2)
            self._random = [drawn[at : at + NUM_RANDOM] for at in range(0, len(drawn), NUM_RANDOM)]
        name = f"{int(time.time()):08x}{self._random.pop()}"
        return name + self._hash(name, user)

    def belongs(self, exposure: str, user: str) -> bool:
        """Returns whether the id may be of an answer to the user."""
        return hmac.compare_digest(exposure[22:], self._hash(exposure[:22], user))

    def _hash(self, name: str, user: str) -> str:
        text = f"{name}{user}".encode(errors="surrogatepass")
        return blake2b(text, key=self._key, digest_size=5).hexdigest()
