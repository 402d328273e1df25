"""Profiles of accelerators are data with sources; a file that cannot be right does not load, and says which field is wrong."""

from importlib.resources import files
from pathlib import Path

import pytest

from simulator.physics.accelerator import NUMBERS, known_accelerators, load_accelerator, parse_accelerator, read_accelerator
from simulator.physics.sourced import Grade, ProfileError, names_in
from simulator.physics.transfer import known_transfers, load_transfer, native_transfer

L20 = (files("simulator.physics") / "data" / "accelerators" / "l20.toml").read_text()


def changed(old: str, new: str) -> str:
    assert old in L20
    return L20.replace(old, new, 1)


def test_five_profiles_come_along() -> None:
    assert known_accelerators() == ["a100", "ascend_like", "b200_like", "h100", "l20"]


@pytest.mark.parametrize("name", known_accelerators())
def test_each_number_of_a_shipped_profile_has_a_source(name: str) -> None:
    profile = load_accelerator(name)
    assert set(profile.origins) == set(NUMBERS)
    assert all(len(origin.source) > 8 for origin in profile.origins.values())


@pytest.mark.parametrize("name", known_accelerators())
def test_no_profile_promises_more_than_its_data_sheet(name: str) -> None:
    profile = load_accelerator(name)
    assert profile.flops_per_second < profile.peak_flops_per_second
    assert profile.gather_bytes_per_second < profile.to_device_bytes_per_second < profile.hbm_bytes_per_second
    assert profile.hbm_bytes % 10**9 == 0


def test_devices_named_like_another_say_that_their_rate_is_no_measurement() -> None:
    for name in ("b200_like", "ascend_like", "a100"):
        assert load_accelerator(name).origins["effective_flop_share"].grade in (Grade.FITTED, Grade.ASSUMED)
    assert load_accelerator("ascend_like").origins["effective_flop_share"].grade is Grade.ASSUMED


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("not toml [", "not TOML"),
        (changed('summary = "', 'about = "'), "summary"),
        (changed("[compute_units]", "[compute_unit]"), "missing fields ['compute_units'], unknown fields ['compute_unit']"),
        (changed("value = 92\n", "value = 92.5\n"), "compute_units: 92.5 must be whole"),
        (changed("value = 92\n", "value = 0\n"), "compute_units: value 0 is not a positive finite number"),
        (changed("value = 92\n", "value = nan\n"), "not a positive finite number"),
        (changed("value = 92\n", "value = inf\n"), "not a positive finite number"),
        (changed("value = 92\n", "value = true\n"), "not a positive finite number"),
        (changed("value = 92\n", 'value = "92"\n'), "not a positive finite number"),
        (changed("value = 0.6624\n", "value = 66.24\n"), "effective_flop_share: 66.24 is a share"),
        (changed('grade = "recalled"', 'grade = "certain"'), "grade 'certain' is none of"),
        (changed('source = "NVIDIA L20: 864 GB/s"', 'source = " "'), "must say where the number comes from"),
        (changed('source = "NVIDIA L20: 864 GB/s"\n', ""), "exactly value, grade and source"),
        (L20 + "\n[overclock]\nvalue = 2\n", "unknown fields ['overclock']"),
    ],
)
def test_a_profile_that_cannot_be_right_is_refused_with_file_and_field(text: str, says: str) -> None:
    with pytest.raises(ProfileError) as refusal:
        parse_accelerator(text, name="mine")
    assert says in str(refusal.value)
    assert str(refusal.value).startswith("mine: ")


def test_a_team_reads_a_profile_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(changed("value = 0.6624", "value = 0.5"))
    assert read_accelerator(path).flops_per_second == pytest.approx(0.5 * 119.5e12)
    assert read_accelerator(path).name == "ours"


def test_a_profile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="a100, ascend_like"):
        load_accelerator("../published/hstu_l20")
    with pytest.raises(ProfileError, match="cannot be read"):
        read_accelerator(tmp_path / "absent.toml")


def test_published_copy_paths_come_with_sources_and_with_the_duplex_penalty_of_the_device() -> None:
    assert known_transfers() == ["flexkv_h100", "flexkv_h100_batched", "flexkv_l20"]
    a100 = load_accelerator("a100")
    for name in known_transfers():
        cost = load_transfer(name, a100)
        assert len(cost.origins) == 4
        assert cost.to_device_duplex_share == native_transfer(a100).to_device_duplex_share == 0.45


def test_tables_of_published_points_are_no_profiles() -> None:
    with pytest.raises(ProfileError):
        load_transfer(names_in("published")[0], load_accelerator("l20"))
