"""Set up Superset in a folder and serve it on this machine: python tests/clients/superset_server.py FOLDER PORT."""

from __future__ import annotations

import os
import sys
from pathlib import Path

CONFIG = """
SECRET_KEY = "of a Superset that tests start and throw away"
SQLALCHEMY_DATABASE_URI = "sqlite:///{folder}/superset.db"
# Its thread for a cursor of Trino now and then gets the session of the request's thread.
SQLALCHEMY_ENGINE_OPTIONS = {{"connect_args": {{"check_same_thread": False}}}}
WTF_CSRF_ENABLED = False
TALISMAN_ENABLED = False
RATELIMIT_ENABLED = False
FAB_PASSWORD_HASH_METHOD = "pbkdf2:sha256:1000"
"""

ADMIN = "admin"


def main(folder: Path, port: int) -> None:
    """Create tables and an administrator, and serve until the process ends."""
    (folder / "superset_config.py").write_text(CONFIG.format(folder=folder))
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        os.environ.pop(variable, None)  # requests would prefer it to the certificate of the connection
    os.environ["SUPERSET_CONFIG_PATH"] = str(folder / "superset_config.py")
    from flask_appbuilder import Model
    from superset.app import create_app

    app = create_app()
    with app.app_context():
        from superset import appbuilder, db, security_manager

        Model.metadata.create_all(db.engine)  # migrations of an empty database take ten times as long
        appbuilder.add_permissions(update_perms=True)
        security_manager.sync_role_definitions()
        security_manager.add_user(ADMIN, ADMIN, ADMIN, "admin@localhost", security_manager.find_role("Admin"), ADMIN)
    app.run("127.0.0.1", port, threaded=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
