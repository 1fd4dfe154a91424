# SPDX-License-Identifier: Apache-2.0
"""The answer of operations, which each long verb starts."""

from typing import Final

from cyborg.api import answers, types
from cyborg.api.answers import Answer, Member, Source
from cyborg.model.operation import HostResult, Operation, OperationState, ResultState, Step

#: The collection of operations, for their links and for the Location of long verbs.
OPERATIONS: Final = "operations"

_SAID_OBJECT: Final = answers.Said(answers.Nullable(answers.OBJECT))
STEP_VIEW: Final = Answer[Step](
    "StepView",
    "A step that an operation has reached.",
    name=Member(answers.STRING),
    at=Member(answers.TIME, lambda step: step.at_ms),
)
RESULT_VIEW: Final = Answer[HostResult](
    "ResultView",
    "The result of an operation on one host.",
    host=Member(answers.HOST),
    state=Member(types.Word(*ResultState)),
    result=Member(_SAID_OBJECT),
    error=Member(answers.SAID_OR_NULL),
)
OPERATION_VIEW: Final = Answer[Operation](
    "OperationView",
    "An operation: the progress and the results of a long verb.",
    Source(hosts=lambda operation: [result.host for result in operation.results]),
    uuid=Member(types.UUID_TYPE),
    verb=Member(answers.STRING),
    state=Member(types.Word(*OperationState)),
    steps=Member(types.Items(STEP_VIEW)),
    results=Member(types.Items(RESULT_VIEW)),
    error=Member(answers.SAID_OR_NULL),
    project_id=Member(answers.TEXT_OR_NULL),
    user_id=Member(answers.TEXT_OR_NULL),
    request_id=Member(answers.TEXT_OR_NULL),
    created_at=Member(answers.TIME, lambda operation: operation.created_ms),
    finished_at=Member(answers.TIME_OR_NULL, lambda operation: operation.finished_ms),
    links=Member(answers.Links(OPERATIONS), lambda operation: operation.uuid),
    subject=Member(_SAID_OBJECT),
)
