"""Add what replicas tell each other: leases of conversations, wishes to cancel, events of unfinished responses."""

import sqlalchemy as sa
from alembic import op

from plumbline.server.store.sql.tables import conversations, event_parts, metadata, responses

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add what is missing. A new database has it from the first revision, and a killed process may have added some."""
    bind = op.get_bind()
    for table, names in ((responses, ("cancel_requested",)), (conversations, ("runner", "lease_until"))):
        present = {column["name"] for column in sa.inspect(bind).get_columns(table.name)}
        for name in names:
            if name not in present:
                op.add_column(table.name, sa.Column(name, table.c[name].type))
    metadata.create_all(bind, tables=[event_parts], checkfirst=True)
