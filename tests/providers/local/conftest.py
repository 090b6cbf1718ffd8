"""The embedded model, loaded once, and a file with the same weights whose chat template supports tools."""

import struct
from pathlib import Path

import pytest

from hookline.providers.local import weights
from hookline.providers.local.model import LocalModel

TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\nUse <tool_call>{"name": ..., "arguments": ...}</tool_call>\\n<tools>\\n' }}
{%- for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}{{ '</tools><|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}
{%- if message.role == 'tool' %}{{ '<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- elif message.content %}{{ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32


@pytest.fixture(scope="session")
def local():
    """The embedded model."""
    pytest.importorskip("xllamacpp")
    model = LocalModel()
    model.load()
    return model


@pytest.fixture(scope="session")
def engine(local):
    return local.load()


@pytest.fixture(scope="session")
def taught(local, tmp_path_factory):
    """A model file whose template supports tools; the weights are the embedded ones."""
    path = tmp_path_factory.mktemp("taught") / "smol.tools.gguf"
    with_template(weights.weights_path(), path, TEMPLATE)
    model = LocalModel(path, context=1024)
    model.load()
    return model


def with_template(source: Path, target: Path, template: str) -> None:
    """Copy a GGUF file with another chat template."""
    data = source.read_bytes()
    reader = _Reader(data)
    tensors, pairs = reader.header()
    begin = end = 0
    for _ in range(pairs):
        key, kind = reader.text(), reader.number("<I", 4)
        before = reader.at
        reader.skip(kind)
        if key == b"tokenizer.chat_template":
            begin, end = before, reader.at
        assert key != b"general.alignment"
    for _ in range(tensors):
        reader.text()
        dimensions = reader.number("<I", 4)
        reader.at += 8 * dimensions + 4 + 8
    encoded = template.encode()
    head = data[:begin] + struct.pack("<Q", len(encoded)) + encoded + data[end : reader.at]
    with target.open("wb") as out:
        out.write(head + b"\0" * (-len(head) % _ALIGNMENT))
        out.write(memoryview(data)[reader.at + (-reader.at % _ALIGNMENT) :])


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def header(self) -> tuple[int, int]:
        assert self.data[:4] == b"GGUF"
        self.at = 8
        return self.number("<Q", 8), self.number("<Q", 8)

    def number(self, form: str, size: int) -> int:
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += size
        return value

    def text(self) -> bytes:
        size = self.number("<Q", 8)
        self.at += size
        return self.data[self.at - size : self.at]

    def skip(self, kind: int) -> None:
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            of, count = self.number("<I", 4), self.number("<Q", 8)
            for _ in range(count):
                self.skip(of)
        else:
            self.at += _SIZES[kind]
