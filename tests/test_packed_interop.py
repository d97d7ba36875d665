"""Other tools read what we write, and we read what they write: h5py, tfrecord, webdataset, py-lmdb, tar."""

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
from PIL import Image

import rekindle as rk
from one_inspector import one_inspector  # noqa: F401 - a fixture of all tests here
from packs import CLASSES, jpegs, pack
from rekindle.fetch import open_source

COUNT = 5
LABELS = [number % 3 for number in range(COUNT)]

pytestmark = pytest.mark.usefixtures("cache")


def _read(path: Path, **options: Any) -> tuple[list[bytes], list[int]]:
    data = rk.open(path, decode=False, **options)
    return [sample for sample, _ in data], data.targets


def test_h5py_reads_ours(tmp_path: Path) -> None:
    with h5py.File(pack(tmp_path / "a.h5", jpegs(COUNT), CLASSES)) as file:
        assert [image.tobytes() for image in file["images"]] == jpegs(COUNT)
        assert file["labels"][:].tolist() == LABELS
        assert [key.decode() for key in file["keys"]][2] == "photos/0002"
        assert json.loads(file["labels"].attrs["classes"]) == CLASSES


def test_the_tfrecord_package_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    tfrecord = pytest.importorskip("tfrecord")
    path = pack(tmp_path / "a.tfrecord", jpegs(COUNT), CLASSES)
    features = {"image/encoded": "byte", "image/class/label": "int", "image/class/text": "byte"}
    records = list(tfrecord.tfrecord_loader(str(path), None, features))
    assert [bytes(record["image/encoded"]) for record in records] == jpegs(COUNT)
    assert [int(record["image/class/label"][0]) for record in records] == LABELS
    assert [bytes(record["image/class/text"]).decode() for record in records] == [CLASSES[n] for n in LABELS]
    writer = tfrecord.TFRecordWriter(str(tmp_path / "theirs.tfrecord"))
    for image, label in zip(jpegs(COUNT), LABELS, strict=True):
        writer.write(
            {
                "image": (image, "byte"),
                "size": (1.5, "float"),
                "label": (label, "int"),
                "many": ([3, 4], "int"),
            }
        )
    writer.close()
    assert _read(tmp_path / "theirs.tfrecord") == (jpegs(COUNT), LABELS)
    many = _read(tmp_path / "theirs.tfrecord", features={"image": "image", "label": "many"})
    assert many == (jpegs(COUNT), [3] * COUNT)


FIXTURES = Path(__file__).parent / "fixtures"  # with the program that made them


@pytest.mark.parametrize("name", ["tensorflow.tfrecord", "tensorflow.tfrecord.gz"])
def test_files_that_tensorflow_wrote(tmp_path: Path, name: str) -> None:
    shutil.copy(FIXTURES / name, tmp_path)
    data = rk.open(tmp_path / name)
    assert (data.targets, data.classes) == ([0, 1, 2, 0, 1], ["cat", "dog", "owl"])
    for number, (image, _) in enumerate(data):
        np.testing.assert_array_equal(image, np.full((8, 6, 3), 40 * number))
    other = rk.open(tmp_path / name, features={"image": "image/encoded", "label": "image/height"})
    assert other.targets == [8] * 5


def test_records_of_the_protobuf_library(tmp_path: Path) -> None:
    """Messages that protobuf itself serialises, with our framing."""
    pb2 = pytest.importorskip("tfrecord.example_pb2")
    import struct

    import google_crc32c

    from rekindle.fetch.packed.tfrecord.index import mask

    out = io.BytesIO()
    for image, label in ((b"\xff\xd8one", -7), (b"\xff\xd8two" * 100, 300)):
        example = pb2.Example()
        example.features.feature["image/class/label"].int64_list.value.append(label)
        example.features.feature["image/encoded"].bytes_list.value.append(image)
        example.features.feature["nothing"].float_list.value.extend([])
        message = example.SerializeToString()
        for part in (struct.pack("<Q", len(message)), message):
            out.write(part + struct.pack("<I", mask(google_crc32c.value(part))))
    (tmp_path / "a.tfrecord").write_bytes(out.getvalue())
    assert _read(tmp_path / "a.tfrecord") == ([b"\xff\xd8one", b"\xff\xd8two" * 100], [-7, 300])


# webdataset leaves its files to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    for number in range(2):
        pack(tmp_path / f"ours-{number:03}.tar", jpegs(COUNT), CLASSES)
    urls = str(tmp_path / "ours-{000..001}.tar")
    pipeline = webdataset.WebDataset(urls, shardshuffle=False).to_tuple("__key__", "jpg", "cls")
    read = list(pipeline)
    assert [image for _, image, _ in read] == jpegs(COUNT) * 2
    assert [int(label) for _, _, label in read] == LABELS * 2
    assert read[1][0] == "photos/0001"
    decoded = list(webdataset.WebDataset(urls, shardshuffle=False).decode("rgb8").to_tuple("jpg", "cls"))
    np.testing.assert_array_equal(decoded[0][0], np.asarray(Image.open(io.BytesIO(jpegs(1)[0]))))
    assert [label for _, label in decoded] == LABELS * 2
    with webdataset.TarWriter(str(tmp_path / "theirs.tar")) as sink:
        for number, image in enumerate(jpegs(COUNT)):
            sink.write({"__key__": f"a/{number}", "jpg": image, "json": {"label": LABELS[number], "x": [1]}})
    assert _read(tmp_path / "theirs.tar") == (jpegs(COUNT), LABELS)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_decodes_our_raw_pixels(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    pixels = np.arange(7 * 5 * 3, dtype=np.uint8).reshape(7, 5, 3)
    pack(tmp_path / "raw.tar", [pixels])
    pipeline = webdataset.WebDataset(str(tmp_path / "raw.tar"), shardshuffle=False)
    ((image,),) = list(pipeline.decode("rgb8").to_tuple("ppm"))
    np.testing.assert_array_equal(image, pixels)


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tarfile_reads_ours_and_we_read_its(tmp_path: Path, kind: int) -> None:
    with tarfile.open(pack(tmp_path / "a.tar", jpegs(COUNT), CLASSES)) as tar:
        images = [tar.extractfile(member).read() for member in tar if member.name.endswith("jpg")]  # type: ignore[union-attr]
        assert images == jpegs(COUNT)
    long = "é" * 60 + "/" + "b" * (90 if kind == tarfile.USTAR_FORMAT else 190)
    with tarfile.open(tmp_path / "theirs.tar", "w", format=kind) as tar:
        tar.addfile(tarfile.TarInfo("folder/"))
        link = tarfile.TarInfo("../../link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for number, image in enumerate(jpegs(COUNT)):
            for ending, content in (("jpg", image), ("cls", str(LABELS[number]).encode())):
                member = tarfile.TarInfo(
                    f"/../{long}{number}.{ending}"[-255 if kind != tarfile.USTAR_FORMAT else -200 :]
                )
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    source = open_source(tmp_path / "theirs.tar")
    assert [bytes(source.read(number)) for number in range(COUNT)] == jpegs(COUNT)
    assert source.targets == LABELS
    assert source.path(3).endswith("b3")


def _tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_endings_in_a_tar_say_what_are_images_and_labels(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, image in enumerate(jpegs(3)):
            members = {"depth.png": b"\x89PNG", "rgb.jpg": image, "label.txt": b"owl" if number else b"cat"}
            for ending, content in members.items():
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    data = rk.open(tmp_path / "a.tar", images="rgb.jpg", labels="label.txt", decode=False)
    assert [image for image, _ in data] == jpegs(3)
    assert (data.classes, data.targets) == (["cat", "owl"], [0, 1, 1])


@pytest.mark.parametrize(
    ("endings", "images", "taken"),
    [
        (["depth.png", "jpg", "cls"], None, "jpg"),
        (["edge.jpg", "jpg"], "jpg", "jpg"),
        (["edge.jpg", "jpg"], "edge.jpg", "edge.jpg"),
        (["gif", "png", "jpg"], None, "jpg"),
        (["gif"], None, "gif"),
        (["left.png", "json"], None, "left.png"),
    ],
)
def test_of_several_images_the_one_with_the_plain_ending_is_taken(
    tmp_path: Path, endings: list[str], images: str | None, taken: str
) -> None:
    members = {
        f"{number}.{ending}": b"1" if ending == "cls" else f'"{ending}"'.encode()
        for number in range(2)
        for ending in endings
    }
    path = _tar(tmp_path / "a.tar", members)
    assert _read(path, images=images)[0] == [f'"{taken}"'.encode()] * 2


@pytest.mark.parametrize("ending", ["cls", "json"])
def test_an_image_with_a_dot_in_its_name_has_the_label_beside_it(tmp_path: Path, ending: str) -> None:
    """And not that of its folder."""
    label = {"cls": b"%d", "json": b'{"label": %d}'}[ending]
    members: dict[str, bytes] = {}
    for number, image in enumerate(jpegs(4)):
        members[f"{'ab'[number % 2]}/{number}.2024.jpg"] = image
        members[f"{'ab'[number % 2]}/{number}.2024.{ending}"] = label % (number + 5)
    path = _tar(tmp_path / "a.tar", members)
    assert _read(path) == (jpegs(4), [5, 6, 7, 8])


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_shards_of_webdataset_of_any_number_of_samples_are_one_data_set(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "s-%03d.tar"), maxcount=3, verbose=0) as sink:
        for number, image in enumerate(jpegs(7)):
            sink.write({"__key__": f"{number:03}", "jpg": image, "cls": number % 2})
    assert _read(tmp_path / "s-{000..002}.tar") == (jpegs(7), [number % 2 for number in range(7)])
    assert _read(tmp_path / "s-{002,000}.tar")[0] == jpegs(7)[6:] + jpegs(7)[:3]


def test_class_folders_in_a_tar_are_classes(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, image in enumerate(jpegs(4)):
            member = tarfile.TarInfo(f"train/{'owl' if number > 1 else 'cat'}/{number}.JPEG")
            member.size = len(image)
            tar.addfile(member, io.BytesIO(image))
    source = open_source(tmp_path / "a.tar")
    assert (source.classes, source.targets) == (["cat", "owl"], [0, 0, 1, 1])


def test_a_tar_without_labels_has_none(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number, image in enumerate(jpegs(3)):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.size = len(image)
            tar.addfile(member, io.BytesIO(image))
    source = open_source(tmp_path / "a.tar")
    assert (source.classes, source.targets) == ([], [-1, -1, -1])


def test_py_lmdb_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.lmdb", jpegs(COUNT), CLASSES)
    with lmdb.open(str(path), readonly=True, lock=False) as database, database.begin() as transaction:
        values = {key: value for key, value in transaction.cursor() if not key.startswith(b"__")}
    assert list(values) == [b"%08d_photos/%04d" % (number, number) for number in range(COUNT)]
    assert all(image in value for image, value in zip(jpegs(COUNT), values.values(), strict=True))
    with lmdb.open(str(tmp_path / "theirs.lmdb"), map_size=1 << 26) as database:
        with database.begin(write=True) as transaction:
            for number, image in enumerate(jpegs(COUNT)):
                transaction.put(b"%d" % number, image)
            transaction.put(b"__keys__", b"\x80\x04 pickled")
        with database.begin(write=True) as transaction:
            transaction.delete(b"2")
    images, labels = _read(tmp_path / "theirs.lmdb")
    assert images == jpegs(COUNT)[:2] + jpegs(COUNT)[3:]
    assert labels == [-1] * 4


def test_many_values_of_py_lmdb_of_all_sizes_in_a_database_of_its_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = {}
    with lmdb.open(str(tmp_path / "many"), map_size=1 << 28, max_dbs=2) as database:
        inner = database.open_db(b"train")
        for start in range(0, 3000, 500):
            with database.begin(write=True, db=inner) as transaction:
                for number in range(start, start + 500):
                    key = b"%06d" % rng.integers(1_000_000)
                    values[key] = b"\xff\xd8" + rng.bytes(int(rng.choice([3, 40, 700, 1990, 4100, 20_000])))
                    transaction.put(key, values[key])
                    del number
        with database.begin(write=True, db=inner) as transaction:
            for key in sorted(values)[::7]:
                transaction.delete(key)
                del values[key]
    with pytest.raises(rk.FormatError, match="Give the name of a database: images="):
        open_source(tmp_path / "many")
    source = open_source(tmp_path / "many", options={"images": "train"})
    assert [bytes(source.read(number)) for number in range(len(source))] == [
        values[key] for key in sorted(values)
    ]


def _datum() -> Any:
    """Caffe's message, as its `caffe.proto` has it, made by the protobuf library itself."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="caffe_datum.proto", package="caffe", syntax="proto2")
    message = file.message_type.add(name="Datum")
    one, many = (
        descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL,
        descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED,
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind, how_many) in enumerate(
        (
            ("channels", kinds.TYPE_INT32, one),
            ("height", kinds.TYPE_INT32, one),
            ("width", kinds.TYPE_INT32, one),
            ("data", kinds.TYPE_BYTES, one),
            ("label", kinds.TYPE_INT32, one),
            ("float_data", kinds.TYPE_FLOAT, many),
            ("encoded", kinds.TYPE_BOOL, one),
        ),
        start=1,
    ):
        message.field.add(name=name, number=number, type=kind, label=how_many)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("caffe.Datum"))


def test_caffe_reads_ours_and_we_read_its(tmp_path: Path) -> None:
    datum = _datum()
    path = pack(tmp_path / "a.lmdb", jpegs(COUNT))
    with lmdb.open(str(path), readonly=True, lock=False) as database, database.begin() as transaction:
        ours = [datum.FromString(value) for _, value in transaction.cursor()]
    assert [(one.data, one.label, one.encoded) for one in ours] == [
        (image, label, True) for image, label in zip(jpegs(COUNT), LABELS, strict=True)
    ]
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    pixels[0, :2, 2] = 0xFF, 0xD8  # Blue comes first there: these bytes begin as a JPEG does.
    caffe = np.ascontiguousarray(pixels[:, :, ::-1].transpose(2, 0, 1))
    theirs = {
        b"0": datum(channels=3, height=6, width=5, data=caffe.tobytes(), label=42),
        b"1": datum(channels=3, height=90, width=120, data=jpegs(1)[0], label=-1, encoded=True),
        b"2": datum(channels=1, height=6, width=5, data=pixels[:, :, 0].tobytes()),
    }
    # A file without a folder, as py-lmdb makes on demand.
    with (
        lmdb.open(str(tmp_path / "b.mdb"), map_size=1 << 24, subdir=False) as database,
        database.begin(write=True) as transaction,
    ):
        for key, one in theirs.items():
            transaction.put(key, one.SerializeToString())
    data = rk.open(tmp_path / "b.mdb")
    assert data.targets == [42, -1, 0]
    np.testing.assert_array_equal(data[0][0], pixels)
    np.testing.assert_array_equal(data[1][0], np.asarray(Image.open(io.BytesIO(jpegs(1)[0]))))
    np.testing.assert_array_equal(data[2][0], np.repeat(pixels[:, :, :1], 3, axis=2))
