"""Fields that upstreams may read in place of the checked ones are refused by each operation, in JSON and in forms."""

from __future__ import annotations

import json

import pytest

from gateway.base.errors import Refused
from gateway.chat.request import BodyRules, checked
from gateway.operations.form import FORM, written
from gateway.operations.operation import SERVED, Operation
from gateway.operations.responses import FIELDS

NAMES = ("model[]", "model[0]", "max_new_tokens", "num_predict", "candidate_count", "numReturnSequences", "options")
COUNTED = (Operation.CHAT, Operation.COMPLETIONS, Operation.IMAGES, Operation.IMAGE_EDITS)
UNCOUNTED = (Operation.MESSAGES, Operation.RESPONSES)
CASES = [(operation, name) for operation in SERVED for name in NAMES]
CASES += [(operation, "n[]") for operation in COUNTED] + [(operation, "n") for operation in UNCOUNTED]


@pytest.mark.parametrize(("operation", "name"), CASES)
def test_what_is_read_in_place_of_a_checked_field_is_refused(operation: Operation, name: str) -> None:
    wire = SERVED[operation]

    def check(**more: int) -> None:
        body = wire.sample("m", "max_tokens") | more
        checked(wire.check(written(body) if wire.accepts == FORM else json.dumps(body).encode(), BodyRules()))

    check()
    with pytest.raises(Refused) as refused:
        check(**{name: 2})
    assert (refused.value.status, refused.value.param) == (400, name)


def test_the_advice_names_the_ceiling_of_the_operation() -> None:
    assert "use 'max_output_tokens'" in FIELDS.remedies["n_predict"]
    assert not [name for name, remedy in FIELDS.remedies.items() if "'max_tokens'" in remedy]
