"""Create the tables."""

from alembic import op

from plumbline.server.store.sql.tables import metadata

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables, as long as this is the only revision; later ones spell out their changes."""
    # A process may have been killed between two tables: SQLite commits each.
    metadata.create_all(op.get_bind(), checkfirst=True)
