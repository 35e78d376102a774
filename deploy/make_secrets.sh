#!/bin/sh
# Creates files for compose.yaml that git ignores: passwords in deploy/secrets/, certificates in deploy/secrets/tls/,
# and deploy/.env with the containers' user id. That user must be able to read the certificates' key.
#   deploy/make_secrets.sh
set -eu

if [ "$#" -ne 0 ]; then
  echo "usage: $0" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
secrets=$here/secrets
if [ -e "$secrets" ]; then
  echo "$0: $secrets already exists; remove it to make new secrets. Existing databases and stores reject them" >&2
  exit 1
fi
umask 077
mkdir "$secrets"
trap 'rm -rf "$secrets"' EXIT  # until all are made
database=$(openssl rand -hex 24)
prefect=admin:$(openssl rand -hex 24)
access=$(openssl rand -hex 10)
store=$(openssl rand -hex 24)

printf 'POSTGRES_PASSWORD=%s\n' "$database" > "$secrets/postgres.env"
printf 'PREFECT_SERVER_DATABASE_PASSWORD=%s\nPREFECT_SERVER_API_AUTH_STRING=%s\n' "$database" "$prefect" \
  > "$secrets/prefect-server.env"
printf 'PREFECT_API_AUTH_STRING=%s\n' "$prefect" > "$secrets/prefect-client.env"
printf 'ROOT_ACCESS_KEY_ID=%s\nROOT_SECRET_ACCESS_KEY=%s\n' "$access" "$store" > "$secrets/s3-server.env"
printf 'AWS_ACCESS_KEY_ID=%s\nAWS_SECRET_ACCESS_KEY=%s\n' "$access" "$store" > "$secrets/s3-client.env"
"$here/tls/make_certificates.sh" "$secrets/tls" > /dev/null

# Containers never run as root, even if root runs this script.
user=$(id -u)
if [ "$user" -eq 0 ]; then
  user=10001
  chown -R "$user:$user" "$secrets/tls"
fi
kept=$(grep -v '^PENSTOCK_UID=' "$here/.env" 2> /dev/null || true)
printf '%s\n' ${kept:+"$kept"} "PENSTOCK_UID=$user" > "$here/.env"
trap - EXIT
echo "$secrets: created; containers run as user $user. The UI's user name and password are in prefect-client.env"
