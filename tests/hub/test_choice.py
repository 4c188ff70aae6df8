"""Of the files of a repository those of one model are chosen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.hub.choice import MODEL_FILES, NoModelError, chosen_files

_QUANTISATIONS = ("Q4_K_M", "Q4_K_S", "Q8_0", "IQ2_XS", "BF16", "UD-Q4_K_M", "Q4_K_M-imat")
_FILES = st.sets(
    st.sampled_from([f"{folder}Model-7B-{kind}.gguf" for folder in ("", "sub/") for kind in _QUANTISATIONS]),
    min_size=1,
)


@given(_FILES, st.sampled_from([str.upper, str.lower]))
def test_a_quantisation_chooses_a_file_of_it_or_lists_what_there_is(files: Any, case: Any) -> None:
    for kind in ("Q4_K_M", "Q8_0", "BF16", "Q2_K"):
        if any(kind in file for file in files):
            (chosen,) = chosen_files(files, case(kind))
            assert kind in chosen
            assert chosen in files
        else:
            with pytest.raises(NoModelError, match=r"it has .*\.gguf"):
                chosen_files(files, case(kind))


@given(_FILES)
def test_a_file_is_chosen_by_its_path_or_name(files: set[str]) -> None:
    for file in files:
        assert chosen_files(files, file) == [file]
        assert chosen_files(files, file.rsplit("/", 1)[-1])[0] in files


@given(_FILES)
def test_a_folder_of_weights_comes_before_gguf_files(files: set[str]) -> None:
    whole = files | {"config.json", "model.safetensors"}
    assert chosen_files(whole, "") == list(MODEL_FILES)
    assert chosen_files(files | {"config.json"}, "")[0] in files


@given(st.integers(1, 30), st.data())
def test_a_split_file_comes_whole_or_not_at_all(total: int, data: st.DataObject) -> None:
    pieces = [f"a/M-Q4_K_M-{number:05}-of-{total:05}.gguf" for number in range(1, total + 1)]
    assert chosen_files(pieces, "Q4_K_M") == pieces
    lost = data.draw(st.sampled_from(pieces))
    if total > 1:
        with pytest.raises(NoModelError, match="is missing"):
            chosen_files(set(pieces) - {lost}, "Q4_K_M")


def test_eyes_and_statistics_are_no_model() -> None:
    files = ["mmproj-F16.gguf", "M-imatrix.gguf", "pytorch_model.bin", "config.json"]
    with pytest.raises(NoModelError, match="neither safetensors nor GGUF"):
        chosen_files(files, "")


@given(_FILES)
def test_the_tag_of_other_tools_means_the_default(files: set[str]) -> None:
    assert chosen_files(files, "latest") == chosen_files(files, "")


@given(_FILES, st.sampled_from(["Q4", "Q8", "IQ2", "q4_K"]))
def test_a_quantisation_in_short_means_one_of_its_kind(files: set[str], short: str) -> None:
    of = {file for file in files if f"-{short.upper()}_" in file}
    if of:
        assert set(chosen_files(files, short)) <= of
    else:
        with pytest.raises(NoModelError, match="it has no GGUF file"):
            chosen_files(files, short)
