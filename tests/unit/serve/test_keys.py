"""Keys are made once, kept so that only their owner reads them, and refused without being shown."""

import json
from pathlib import Path

import pytest

from crossmesh.config.serving import ServeSpec
from crossmesh.errors import InputError
from crossmesh.serve.keys import add_key, admitted_keys, key_digest, key_source, revoke_key, server_key

KEY = "cm-0123456789abcdef"


def test_a_key_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    key = server_key(ServeSpec(), tmp_path, {})
    file = tmp_path / "secrets" / "api_key"
    assert key is not None
    assert len(key) > 40
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert server_key(ServeSpec(), tmp_path, {}) == key
    assert key_source(ServeSpec(), tmp_path, {}) == f"in {file}"
    file.chmod(0o644)
    with pytest.raises(InputError, match="can be read by others"):
        server_key(ServeSpec(), tmp_path, {})


def test_the_environment_comes_first_and_leaves_no_file(tmp_path: Path) -> None:
    serve = ServeSpec(api_key_env="MY_KEY")
    assert server_key(serve, tmp_path, {"MY_KEY": KEY, "CROSSMESH_API_KEY": "x" * 20}) == KEY
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["", "short", "with space in the middle", "schlüssel-0123456789"])
def test_an_unusable_key_is_refused_without_being_shown(tmp_path: Path, key: str) -> None:
    with pytest.raises(InputError, match="not usable") as caught:
        server_key(ServeSpec(), tmp_path, {"CROSSMESH_API_KEY": key})
    assert not key or key not in str(caught.value)


def test_anonymous_serving_has_no_key_and_stays_on_this_machine(tmp_path: Path) -> None:
    assert server_key(ServeSpec(allow_anonymous=True), tmp_path, {"CROSSMESH_API_KEY": KEY}) is None
    with pytest.raises(InputError, match=r"serve\.host='0\.0\.0\.0' would serve anyone"):
        server_key(ServeSpec(allow_anonymous=True, host="0.0.0.0"), tmp_path, {})


def test_keys_of_others_are_kept_as_digests_and_admitted_beside_the_own_one(tmp_path: Path) -> None:
    alice, bob = add_key(tmp_path, "alice"), add_key(tmp_path, "bob.2")
    file = tmp_path / "secrets" / "api_keys.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert alice not in file.read_text()
    assert json.loads(file.read_text())["alice"]["sha256"] == key_digest(alice)
    admitted = {"own": key_digest(KEY), "alice": key_digest(alice), "bob.2": key_digest(bob)}
    assert admitted_keys(ServeSpec(), tmp_path, {"CROSSMESH_API_KEY": KEY}) == admitted
    revoke_key(tmp_path, "alice")
    assert list(admitted_keys(ServeSpec(), tmp_path, {"CROSSMESH_API_KEY": KEY})) == ["own", "bob.2"]
    assert admitted_keys(ServeSpec(allow_anonymous=True), tmp_path, {}) == {}


def test_names_of_keys_are_checked(tmp_path: Path) -> None:
    add_key(tmp_path, "alice")
    for name, said in (("alice", "there is a key of that name"), ("own", "not possible"), ("a b", "not possible"), ("", "not possible")):
        with pytest.raises(InputError, match=said):
            add_key(tmp_path, name)
    with pytest.raises(InputError, match=r"no key of that name\. Known: alice\. Did you mean 'alice'\?"):
        revoke_key(tmp_path, "alcie")


def test_a_key_file_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    add_key(tmp_path, "alice")
    file = tmp_path / "secrets" / "api_keys.json"
    file.write_text('{"alice": {"sha256": "not hex"}}')
    with pytest.raises(InputError, match="cannot be read"):
        admitted_keys(ServeSpec(), tmp_path, {"CROSSMESH_API_KEY": KEY})
    file.chmod(0o640)
    with pytest.raises(InputError, match="can be read by others"):
        admitted_keys(ServeSpec(), tmp_path, {"CROSSMESH_API_KEY": KEY})
