"""Images: pictures that are made of a prompt, and pictures that are changed by one. Each costs the model's price of an `image`.

That price may differ by quality and size. Where a request leaves one of them open, or to the upstream (`auto`), it costs the
dearest that it can get. Pictures have megabytes: they are counted, and not decoded.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Final

import msgspec

from gateway.chat.events import EventStream
from gateway.chat.fields import REMEDIES, UNPRICED, FieldNames, check_names
from gateway.chat.prompt import PromptBound
from gateway.chat.request import Body, BodyRules, check_model, field, invalid_field, parse_top, positive
from gateway.chat.usage import ReportedUsage
from gateway.config.channel import Channel
from gateway.operations.form import FORM, MultipartBody, MultipartForm
from gateway.operations.unit_events import UnitEvents
from gateway.operations.wire_format import LIST, CheckedBody, JsonAnswer, WireFormat

MOST_IMAGES: Final = 10
"""As many as OpenAI makes at once."""
PIXEL: Final = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\b\4\0\0\0\xb5\x1c\f\2\0\0\0\vIDATx\xdacd`\0\0\0\6\0\x020\x81\xd0/"
    b"\0\0\0\0IEND\xaeB`\x82"
)
FIELDS: Final = FieldNames(
    ("model", "prompt", "n", "size", "quality", "stream"),
    (
        *("background", "output_format", "output_compression", "moderation", "response_format", "style", "user"),
        *("seed", "negative_prompt", "input_fidelity"),
    ),
    {
        **REMEDIES,
        **dict.fromkeys(("num_images", "num_outputs", "num_images_per_prompt", "samples", "batch_size"), "use 'n'"),
        **dict.fromkeys(("width", "height", "image_size", "aspect_ratio", "resolution", "megapixels"), "use 'size'"),
        "prompts": "send one 'prompt'",
    },
    UNPRICED | {"service_tier", "partial_images", "frame_count", "svg", "steps", "num_inference_steps"},
)

_text = msgspec.json.Decoder(str | None)
_boolean = msgspec.json.Decoder(bool | None)
_pictures = msgspec.json.Decoder(list[msgspec.Raw])


class ImagesAnswer(JsonAnswer, frozen=True):
    """The pictures that were made."""

    @property
    def usage(self) -> ReportedUsage:
        """The number of pictures, and the tokens that the upstream tells beside it."""
        reported = super().usage
        reported.units = len(_pictures.decode(self.top["data"]))
        return reported


class ImagesFormat(WireFormat):
    """The wire format of `POST /v1/images/generations`. `prompted`: a prompt is required."""

    prompted: ClassVar[bool] = True
    path = "/images/generations"
    answer = "a list of pictures"
    unit = "image"
    generates = False
    tried: ClassVar[Mapping[str, object]] = {"prompt": "A dot", "n": 1}
    reads = ImagesAnswer, "data", LIST

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked body. Raises `Refused`."""
        top = yield from parse_top(raw, rules.max_depth, "'model' and 'prompt'")
        return CheckedBody(**self._checked(top, rules), size=len(raw), _top=top)

    def _checked(self, top: dict[str, msgspec.Raw], rules: BodyRules) -> dict[str, Any]:
        """Return the fields of a body. Raises `Refused`."""
        check_names(top, rules.allow_fields, FIELDS)
        model = check_model(top)
        if self.prompted and not field(top, "prompt", _text, "a text"):
            raise invalid_field("prompt", "'prompt' is required: a text.")
        stream = bool(field(top, "stream", _boolean, "true or false"))
        variant = tuple(field(top, name, _text, "a text") or "" for name in ("quality", "size"))
        number = positive(top, "n", min(MOST_IMAGES, rules.max_n)) or 1
        billed = {"prompt_bound": PromptBound(0), "unit": self.unit, "units": number, "variant": variant}
        return {"model": model, "stream": stream, **billed}

    def events(self, body: Body, channel: Channel, *, gathered: bool, watched: bool) -> EventStream:
        """Return the parser of an answer's events."""
        return UnitEvents(body.units)


class ImageEditsFormat(ImagesFormat):
    """The wire format of `POST /v1/images/edits`: a form with pictures, each as a file."""

    path = "/images/edits"
    accepts = FORM
    tried: ClassVar[Mapping[str, object]] = {**ImagesFormat.tried, "image": PIXEL}

    def check(self, raw: bytes | bytearray, rules: BodyRules) -> Generator[None, None, Body]:
        """Return the checked form. Raises `Refused`."""
        form = yield from MultipartForm.read(raw, ("image", "image[]", "mask"))
        if not form.files:
            raise invalid_field("image", "'image' is required: a file.")
        top = form.top(numbers=("n", "seed", "output_compression"), booleans=("stream",))
        return MultipartBody.of(form, top, **self._checked(top, rules))


class ImageVariationsFormat(ImageEditsFormat):
    """The wire format of `POST /v1/images/variations`: another picture like the one of the form, without a prompt."""

    path = "/images/variations"
    prompted = False
