"""Programs of ours on the drop-in, as user nobody."""

import pathlib
import shutil

NAMES = ("libibverbs.so.1", "librdmacm.so.1", "librxe_sysfs.so")


def place(rxe):
    """Where scripts/build-dropin has put it."""
    return pathlib.Path(rxe).parent / "dropin"


def words(rxe, folder):
    """What to put in front of a program; `folder` gets a copy that anybody may read."""
    home = pathlib.Path(folder) / "on-dropin"
    if not home.exists():
        home.mkdir()
        shutil.copy(rxe, home / "rxe")
        (home / "dropin").mkdir()
        for name in NAMES:
            shutil.copy(place(rxe) / name, home / "dropin" / name, follow_symlinks=False)
        for path in (home, home / "rxe", home / "dropin"):
            path.chmod(0o755)
    return [str(home / "rxe"), "run", "--"]
