#!/bin/sh
# Creates a certificate authority and one certificate for a Dask cluster: ca.pem, cert.pem, key.pem in FOLDER.
#   deploy/tls/make_certificates.sh FOLDER [DAYS]
# The scheduler, the workers and the machines that start runs share one certificate and key. Dask only checks that this
# authority signed a peer's certificate, and every authenticated peer may run code everywhere. Separate certificates
# would therefore isolate nothing. The authority's key is deleted. To revoke the old certificate, make a new authority
# and certificate.
set -eu

if [ "$#" -lt 1 ] || [ "$#" -gt 2 ]; then
  echo "usage: $0 FOLDER [DAYS]" >&2
  exit 2
fi
folder=$1
days=${2:-365}
case $days in
  '' | *[!0-9]* | 0* | ??????*) echo "$0: DAYS is '$days'; expected a whole number from 1 to 99999" >&2; exit 2 ;;
esac
for name in ca.pem cert.pem key.pem; do
  if [ -e "$folder/$name" ]; then
    echo "$0: $folder/$name already exists; remove it to make new certificates. Every machine then needs them" >&2
    exit 1
  fi
done

umask 077
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Python 3.13 and newer reject certificates that don't state their usage.
cat > "$work/extensions" <<'END'
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[member]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END

sign() {
  if ! openssl "$@" 2> "$work/said"; then
    cat "$work/said" >&2
    exit 1
  fi
}
sign ecparam -name prime256v1 -genkey -noout -out "$work/ca-key.pem"
sign ecparam -name prime256v1 -genkey -noout -out "$work/key.pem"
sign req -new -key "$work/ca-key.pem" -subj "/CN=Penstock's Dask cluster" -out "$work/ca.csr"
sign x509 -req -in "$work/ca.csr" -signkey "$work/ca-key.pem" -sha256 -days "$days" -extfile "$work/extensions" \
  -extensions authority -out "$work/ca.pem"
sign req -new -key "$work/key.pem" -subj "/CN=dask" -out "$work/cert.csr"
sign x509 -req -in "$work/cert.csr" -CA "$work/ca.pem" -CAkey "$work/ca-key.pem" -CAcreateserial -sha256 -days "$days" \
  -extfile "$work/extensions" -extensions member -out "$work/cert.pem"
sign verify -CAfile "$work/ca.pem" "$work/cert.pem" > /dev/null
mv "$work/ca.pem" "$work/cert.pem" "$work/key.pem" "$folder/"
echo "$folder: ca.pem, cert.pem, key.pem, for $days days"
