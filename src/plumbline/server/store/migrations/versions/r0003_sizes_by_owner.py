"""Index what each owner has stored, for the limits of keys."""

from alembic import op

from plumbline.server.store.sql.tables import chats, conversations

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the indices that a new database has from the first revision."""
    for table, name in ((conversations, "conversations_by_owner"), (chats, "chats_by_size")):
        index = next(each for each in table.indexes if each.name == name)
        index.create(op.get_bind(), checkfirst=True)
