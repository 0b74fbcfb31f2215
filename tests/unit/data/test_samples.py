import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from oscbench.data.samples import SampleTable, check_images, class_names, read_samples, write_samples
from oscbench.errors import OscbenchError, UsageError


def test_reads_the_published_format_with_its_oddities(tmp_path):
    path = tmp_path / "p1_train.csv"
    path.write_bytes(b"train/n02085620/a.JPEG,0\r\ntrain/n02114367/b.JPEG, -1\r\n\r\n   \nval/n02666196/c.JPEG,-2\n")
    table = read_samples(path, n_known=116)
    assert table.paths == ("train/n02085620/a.JPEG", "train/n02114367/b.JPEG", "val/n02666196/c.JPEG")
    assert table.labels.tolist() == [0, -1, -2]
    assert table.labels.dtype == np.int64
    assert class_names(table) == ["n02085620", "n02114367", "n02666196"]


def test_writes_the_published_format(tmp_path):
    write_samples(tmp_path / "t.csv", SampleTable(("train/a/x.JPEG", "val/b/y.JPEG"), np.array([3, -2])))
    assert (tmp_path / "t.csv").read_bytes() == b"train/a/x.JPEG,3\nval/b/y.JPEG,-2\n"


path_text = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)


@given(st.dictionaries(path_text, st.integers(-2, 200), min_size=1, max_size=20))
def test_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("samples") / "t.csv"
    write_samples(path, SampleTable(tuple(rows), np.array(list(rows.values()), np.int64)))
    table = read_samples(path, n_known=201)
    assert dict(zip(table.paths, table.labels.tolist(), strict=True)) == rows


def test_all_bad_rows_are_counted_and_the_first_ten_shown(tmp_path):
    path = tmp_path / "bad.csv"
    faults = [
        "path,label",
        "a/b.JPEG",
        "a/b.JPEG,1,2",
        ",3",
        "a/c.JPEG,1.5",
        "a/d.JPEG,-3",
        "a/e.JPEG,116",
        "a/ok.JPEG,7",
    ]
    path.write_text("\n".join(["a/ok.JPEG,5", *faults, *(f"a/{i}.JPEG,x" for i in range(5))]) + "\n")
    with pytest.raises(UsageError) as caught:
        read_samples(path, n_known=116)
    message = str(caught.value)
    assert message.startswith(f"{path}: 13 bad rows: line 2: label 'label' is no whole number; ")
    for part in (
        "line 3: 1 fields instead of 2",
        "line 4: 3 fields instead of 2",
        "line 5: the path is empty",
        "line 6: label '1.5' is no whole number",
        "line 7: label -3 is outside -2..115",
        "line 8: label 116 is outside -2..115",
        "line 9: a/ok.JPEG stands in line 1 already",
        "line 11: label 'x' is no whole number; and 3 more",
    ):
        assert part in message
    assert "line 12" not in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "has no rows"), (b"\r\n", "has no rows"), (b"\xff\xfe,1\n", "cannot be read as CSV")]
)
def test_files_without_rows(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_samples(tmp_path / "t.csv")


def test_missing_file_and_folder_in_its_place(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        read_samples(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="cannot be read as CSV"):
        read_samples(tmp_path)


def test_labels_and_paths_must_agree():
    with pytest.raises(UsageError, match="2 paths and 1 labels"):
        SampleTable(("a", "b"), np.array([1]))


def test_a_class_is_a_folder():
    with pytest.raises(UsageError, match="1 image: x.JPEG without a folder"):
        class_names(SampleTable(("a/y.JPEG", "x.JPEG"), np.array([0, 1])))


def test_nothing_half_written_stays_behind(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OscbenchError, match="cannot write"):
        write_samples(tmp_path / "file" / "t.csv", SampleTable(("a/b",), np.array([0])))
    with pytest.raises(UnicodeEncodeError):  # fails after the first row is written
        write_samples(tmp_path / "t.csv", SampleTable(("a/b", "a/\udcff"), np.array([0, 1])))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_check_images_names_missing_and_damaged_files(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "good.JPEG")
    Image.effect_noise((64, 64), 50).convert("RGB").save(tmp_path / "cut.JPEG")
    whole = (tmp_path / "cut.JPEG").read_bytes()
    (tmp_path / "cut.JPEG").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.JPEG").write_text("not an image")
    seen = []
    check_images(tmp_path, ["good.JPEG"], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 1)]
    with pytest.raises(OscbenchError) as caught:
        check_images(tmp_path, ["good.JPEG", "cut.JPEG", "text.JPEG", "gone.JPEG"])
    message = str(caught.value)
    assert message.startswith("3 unreadable images: ")
    assert f"{tmp_path}/cut.JPEG does not decode (image file is truncated" in message
    assert f"{tmp_path}/text.JPEG does not decode" in message
    assert f"{tmp_path}/gone.JPEG is missing" in message
