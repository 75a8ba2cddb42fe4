"""Signs the commits of the ledger by git's own SSH signing, and verifies the newest commit.

`release.signing_key` names the key, or git's `user.signingkey` does; the keys that may sign are in the file
that git's `gpg.ssh.allowedSignersFile` names. A commit names its parent and all records of the night, with
the digests of the version's model and files; so one signature on the newest commit vouches for the whole
ledger, and for every byte that the ledger lets run.
"""

from pathlib import Path

from daybreak.contract import params
from daybreak.contract.errors import ParamsError, ReleaseError
from daybreak.contract.sections import ReleaseParams
from daybreak.storage.checkout import git
from daybreak.storage.home import Home

UNSIGNED = "not signed by a key of gpg.ssh.allowedSignersFile"
LOOKED_AT = 1000  # commits, for the newest one that is signed


def signing_options(home: Home) -> tuple[list[str], list[str]]:
    """Returns git's own options and those of commit-tree that sign a commit; none where none is to be signed.

    Raises ReleaseError where signatures are required and no key is named.
    """
    wanted = _wanted(home)
    if not wanted.signing_key and not wanted.require_signature:
        return [], []
    key = wanted.signing_key or _configured(home, "user.signingkey")
    if not key:
        raise ReleaseError(
            "release.require_signature is set, but no key signs; name one by release.signing_key in "
            "params.yaml, or by git config user.signingkey"
        )
    return ["-c", "gpg.format=ssh", "-c", f"user.signingkey={Path(key).expanduser()}"], ["-S"]


def expect_signed(home: Home, tip: str, *, branch: str) -> None:
    """Raises ReleaseError where signatures are required and the newest commit of the branch has no valid one.

    An empty ledger has none. The sentence names the newest commit that is signed, and how to go back to it.
    """
    if not tip or not _wanted(home).require_signature or _states(home, tip, limit=1)[0][1] == "G":
        return
    if not _configured(home, "gpg.ssh.allowedSignersFile"):
        raise ReleaseError(
            "release.require_signature is set, but git knows no keys that may sign; name their file by "
            "git config gpg.ssh.allowedSignersFile"
        )
    signed = newest_signed(home, tip)
    back = (
        f"go back to the newest that is: git update-ref {branch} {signed} {tip}"
        if signed
        else ("unset release.require_signature until a night has been signed by release.signing_key")
    )
    raise ReleaseError(
        f"the ledger ends at {tip[:9]}, which is {UNSIGNED}; find out who wrote it, and {back}"
    )


def newest_signed(home: Home, tip: str) -> str:
    """Returns the newest commit up to the tip with a valid signature; the tip itself where none is required.

    It is "" where none of the newest has one.
    """
    if not _wanted(home).require_signature or _states(home, tip, limit=1)[0][1] == "G":
        return tip
    return next((commit for commit, state in _states(home, tip, limit=LOOKED_AT) if state == "G"), "")


def _states(home: Home, tip: str, *, limit: int) -> list[tuple[str, str]]:
    """Returns commits up to the tip, newest first, and git's word on their signatures: G is good."""
    words = ("log", "--first-parent", f"--max-count={limit}", "--format=%H %G?", tip)
    lines = git("-c", "gpg.format=ssh", *words, folder=home.folder).splitlines()
    return [(commit, state) for commit, _, state in (line.partition(" ") for line in lines)]


def _configured(home: Home, name: str) -> str:
    return git("config", "--default", "", "--get", name, folder=home.folder)


def _wanted(home: Home) -> ReleaseParams:
    if not (home.folder / params.FILE).exists():
        return ReleaseParams()
    try:
        return home.params.release
    except ParamsError:
        return home.last_params(home.folder).release
