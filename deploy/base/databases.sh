#!/bin/bash
# Makes a database for each of airflow, mlflow and serving, and a role that owns it and may use no other.
# PostgreSQL's image runs this when it makes a cluster.
set -eu

in_database() { psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$1"; }

for name in airflow mlflow serving; do
  export name file="${SECRETS:-/run/secrets}/${name}_database"
  [ -s "$file" ] || { echo "$file is missing or empty; make it as docs/airflow.md says" >&2; exit 1; }
  in_database postgres <<'SQL'
\set name `printf %s "$name"`
\set password `cat "$file"`
CREATE ROLE :"name" LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD :'password';
CREATE DATABASE :"name" OWNER :"name";
REVOKE ALL ON DATABASE :"name" FROM PUBLIC;
SQL
done
in_database postgres <<'SQL'
REVOKE ALL ON DATABASE postgres, template1 FROM PUBLIC;
SQL
