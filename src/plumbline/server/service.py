"""Combine the groups of operations: those of one model, and the service that the generated routes call."""

from __future__ import annotations

from plumbline.server.operations.adapters import AdapterOperations
from plumbline.server.operations.chat import ChatOperations
from plumbline.server.operations.completions import CompletionOperations
from plumbline.server.operations.conversations import ConversationOperations
from plumbline.server.operations.messages import MessageOperations
from plumbline.server.operations.models import ModelListOperations
from plumbline.server.operations.responses import ResponseOperations
from plumbline.server.operations.routed import RoutedOperations
from plumbline.server.operations.stored_chats import StoredChatOperations
from plumbline.server.operations.stored_responses import StoredResponseOperations
from plumbline.server.operations.tokens import TokenOperations
from plumbline.server.operations.utilities import UtilityOperations

__all__ = ["ModelService", "PlumblineService"]


class ModelService(
    ChatOperations,
    CompletionOperations,
    MessageOperations,
    ResponseOperations,
    TokenOperations,
    AdapterOperations,
):
    """Answers the requests for one loaded model."""


class PlumblineService(
    RoutedOperations,
    StoredChatOperations,
    StoredResponseOperations,
    ConversationOperations,
    ModelListOperations,
    UtilityOperations,
):
    """Answers all requests of a server."""
