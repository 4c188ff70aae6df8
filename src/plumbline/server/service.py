"""Combine the groups of operations into the service that the generated routes call."""

from __future__ import annotations

from plumbline.server.operations.chat import ChatOperations
from plumbline.server.operations.completions import CompletionOperations
from plumbline.server.operations.conversations import ConversationOperations
from plumbline.server.operations.models import ModelOperations
from plumbline.server.operations.responses import ResponseOperations
from plumbline.server.operations.stored_chats import StoredChatOperations
from plumbline.server.operations.stored_responses import StoredResponseOperations
from plumbline.server.operations.utilities import UtilityOperations

__all__ = ["PlumblineService"]


class PlumblineService(
    ChatOperations,
    StoredChatOperations,
    CompletionOperations,
    ResponseOperations,
    StoredResponseOperations,
    ConversationOperations,
    ModelOperations,
    UtilityOperations,
):
    """Answers requests for one served model."""
