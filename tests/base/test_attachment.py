"""Attachments as values: how they are made, what is rejected, and where their content is."""

import copy
import gc
import hashlib
import os
import pickle
import stat

import msgspec
import pytest

from hookline import Attachment, Message
from hookline._base.attachment import attachments_of
from hookline._base.attachment_files import folder_contents, remove_contents, save_contents
from hookline.errors import AttachmentError

PNG = b"\x89PNG\r\n\x1a\n" + b"pixels" * 10
PDF = b"%PDF-1.7\n..."
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt "


def fresh(data=PNG, **fields):
    """An attachment whose content no other test has."""
    return Attachment.of(data + os.urandom(8), **fields)


def test_the_digest_is_that_of_the_content(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(PNG)
    made = Attachment.of(path)
    assert (made.name, made.media_type, made.size) == ("photo.png", "image/png", len(PNG))
    assert made.digest == hashlib.sha256(PNG).hexdigest()
    assert made.data == PNG
    assert Attachment.of(str(path)) == made == Attachment.of(PNG, name="photo.png")
    assert Attachment.of(made) is made


def test_a_file_is_read_once_so_later_changes_have_no_effect(tmp_path):
    path = tmp_path / "photo.png"
    path.write_bytes(PNG)
    made = Attachment.of(path)
    path.write_bytes(PDF)
    path.unlink()
    assert made.data == PNG


@pytest.mark.parametrize(
    ("data", "name", "kind"),
    [
        (PNG, "", "image/png"),
        (PNG, "photo.jpg", "image/png"),
        (b"\xff\xd8\xff\xe0", "", "image/jpeg"),
        (b"GIF89a..", "", "image/gif"),
        (b"RIFF....WEBPVP8 ", "", "image/webp"),
        (PDF, "", "application/pdf"),
        (WAV, "", "audio/wav"),
        (WAV, "a.wav", "audio/wav"),
        (b"ID3\x04", "", "audio/mpeg"),
        (b"\xff\xfb\x90d" + bytes(9), "song.mp3", "audio/mpeg"),
        (b"a,b\n1,2\n", "t.csv", "text/csv"),
        (b'{"a": 1}', "t.json", "application/json"),
        (b"plain words", "", "text/plain"),
        (b"not an image", "photo.png", "text/plain"),
        (b"\x00\x01\x02", "", "application/octet-stream"),
    ],
)
def test_the_media_type_comes_from_the_content_then_from_the_name(data, name, kind):
    assert Attachment.of(data, name=name).media_type == kind


@pytest.mark.parametrize(
    ("given", "kind"), [("IMAGE/PNG", "image/png"), ("image/png; charset=x", "image/png"), ("image/jpg", "image/jpeg")]
)
def test_a_given_media_type_is_normalised(given, kind):
    data = PNG if kind == "image/png" else b"\xff\xd8\xff\xe0"
    assert Attachment.of(data, media_type=given).media_type == kind


@pytest.mark.parametrize(
    ("data", "given", "why"),
    [
        (PDF, "image/png", "its content is application/pdf"),
        (b"MZ\x90\x00", "image/png", "does not begin like such a file"),
        (PNG, "text/plain", "its content is image/png"),
        (PNG, "image", "is not a media type"),
        (PNG, "image/png\n", None),
        (PNG, "image/p ng", "is not a media type"),
        (b"", "image/png", "is empty"),
    ],
)
def test_a_media_type_that_the_content_contradicts_is_rejected(data, given, why):
    if why is None:
        assert Attachment.of(data, media_type=given).media_type == "image/png"
        return
    with pytest.raises(AttachmentError, match=why):
        Attachment.of(data, media_type=given, name="x")


def test_a_url_is_not_fetched():
    made = Attachment.of("https://example.com/a/photo%20one.png?size=2")
    assert (made.media_type, made.name, made.size) == ("image/png", "photo one.png", 0)
    with pytest.raises(AttachmentError, match="was not fetched: download it, and attach the file"):
        made.data  # noqa: B018


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://example.com/photo", "give media_type="),
        ("https:///photo.png", "is not a URL that can be attached"),
        ("https://ann:secret@example.com/photo.png", "no user name"),
        ("https://example.com/a b.png", "is not a URL"),
    ],
)
def test_a_url_that_cannot_be_used_is_rejected(url, why):
    with pytest.raises(AttachmentError, match=why):
        Attachment.of(url)


@pytest.mark.parametrize("value", [None, 3, ["a.png"], object()])
def test_other_values_are_rejected(value):
    with pytest.raises(TypeError, match="a path, bytes, a URL or an Attachment"):
        Attachment.of(value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(AttachmentError, match=r"nope\.png' cannot be attached: No such file"):
        Attachment.of(tmp_path / "nope.png")
    with pytest.raises(AttachmentError, match="cannot be attached"):
        Attachment.of(tmp_path)
    with pytest.raises(AttachmentError, match="cannot be attached"):
        Attachment.of("a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_named_pipe_is_rejected_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AttachmentError, match="is not a regular file"):
        Attachment.of(tmp_path / "pipe")


def test_the_size_is_limited_before_the_file_is_read(tmp_path):
    path = tmp_path / "big.bin"
    with open(path, "wb") as file:
        file.truncate(10**12)  # sparse: reading it would fail
    with pytest.raises(AttachmentError, match=r"has 1e\+03 GB, but the limit for an attachment is 20 MB"):
        Attachment.of(path)
    with pytest.raises(AttachmentError, match="the limit for an attachment is 5 bytes"):
        Attachment.of(b"123456", max_size=5)
    assert Attachment.of(b"123456", max_size=None).size == 6


def test_the_json_form_has_the_digest_and_not_the_content():
    message = Message("user", "Look.", attachments=(fresh(name="a.png"),))
    assert b"pixels" not in message.to_json()
    assert message.attachments[0].digest.encode() in message.to_json()


def test_copies_and_decoded_attachments_find_the_content_while_it_is_in_memory():
    made = fresh(name="a.png")
    data = made.data
    copies = [
        made.replace(name="b.png"),
        copy.deepcopy(made),
        pickle.loads(pickle.dumps(made)),
        msgspec.json.decode(made.to_json(), type=Attachment),
        Message.from_json(Message("user", attachments=(made,)).to_json()).attachments[0],
    ]
    del made
    gc.collect()
    assert [each.data for each in copies] == [data] * 5


def test_content_that_nobody_uses_leaves_the_memory():
    text = fresh(name="a.png").to_json()
    gc.collect()
    with pytest.raises(AttachmentError, match=r"a\.png .* is not stored here: attach it again"):
        Attachment.from_json(text).data  # noqa: B018


def test_an_attachment_cannot_be_changed_in_place():
    made = fresh()
    for name in ("digest", "media_type", "size", "note"):
        with pytest.raises(AttributeError):
            setattr(made, name, "x")


def test_saved_contents_are_files_of_the_owner_named_by_digest(tmp_path):
    made, link = fresh(name="a.png"), Attachment.of("https://example.com/a.png")
    save_contents(tmp_path / "files", [made, link, made])
    (file,) = (tmp_path / "files").iterdir()
    assert file.name == made.digest
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    text, data = made.to_json(), made.data
    del made
    gc.collect()
    contents = folder_contents(tmp_path / "files")
    found = Attachment.from_json(text)
    del contents
    gc.collect()
    assert found.data == data


@pytest.mark.parametrize("damage", ["changed", "deleted"])
def test_stored_content_that_was_changed_or_deleted_is_never_used(tmp_path, damage):
    made = fresh(name="a.png")
    save_contents(tmp_path, [made])
    text, path = made.to_json(), tmp_path / made.digest
    del made
    gc.collect()
    contents = folder_contents(tmp_path)
    found = Attachment.from_json(text)
    if damage == "changed":
        path.write_bytes(PNG + b"another picture")
    else:
        path.unlink()
    with pytest.raises(AttachmentError, match="content was changed" if damage == "changed" else "was deleted"):
        found.data  # noqa: B018
    assert copy.deepcopy(found) == found, "a copy of the description needs no content"
    del contents


def test_contents_are_removed_except_those_that_are_kept(tmp_path):
    one, two = fresh(), fresh()
    save_contents(tmp_path / "f", [one, two])
    (tmp_path / "f" / "notes.txt").write_text("mine")
    remove_contents(tmp_path / "f", keep=[one.digest])
    assert {file.name for file in (tmp_path / "f").iterdir()} == {one.digest, "notes.txt"}
    (tmp_path / "f" / "notes.txt").unlink()
    remove_contents(tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_list_of_attachments_may_hold_paths_bytes_and_urls(tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    found = attachments_of([tmp_path / "a.txt", PNG, "https://example.com/b.png"])
    assert [each.media_type for each in found] == ["text/plain", "image/png", "image/png"]
    for wrong in ("a.png", PNG, tmp_path, found[0], 3):
        with pytest.raises(TypeError, match="takes a list"):
            attachments_of(wrong)


def test_messages_in_openais_format_may_have_files():
    from base64 import b64encode

    png, pdf, wav = (b64encode(data).decode() for data in (PNG, PDF, WAV))
    message = Message.of(
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Compare."},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/picture"}},
                {
                    "type": "file",
                    "file": {"filename": "../../r.pdf", "file_data": f"data:application/pdf;base64,{pdf}"},
                },
                {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}},
            ],
        }
    )
    assert message.content == "Compare."
    kinds = [each.media_type for each in message.attachments]
    assert kinds == ["image/png", "image/*", "application/pdf", "audio/wav"]
    assert message.attachments[2].name == "r.pdf"
