#!/bin/sh
# Creates the credentials of the nodes of compose.yaml in /run/burn-remote: a certificate authority, a
# certificate for each node, a token for clients, and a token for peers. Keeps existing files that are
# valid.
#
#   make-secrets.sh NODE...
set -eu
umask 077
cd "${SECRETS:-/run/burn-remote}"

days=30
key="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc"

fresh() { [ -s "$1" ] && openssl x509 -in "$1" -noout -checkend 86400 >/dev/null 2>&1; }
secret() { openssl rand -hex 32; }

if ! fresh ca.pem; then
    rm -f ./*.pem
    # shellcheck disable=SC2086  # the options of a key are several words
    openssl req -x509 $key -keyout ca.key.pem -out ca.pem -days $days -subj "/CN=burn-remote demo" \
        -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign" 2>/dev/null
fi

for node in "$@"; do
    fresh "$node.pem" && continue
    # shellcheck disable=SC2086
    openssl req $key -keyout "$node.key.pem" -subj "/CN=$node" 2>/dev/null |
        openssl x509 -req -CA ca.pem -CAkey ca.key.pem -days $days -out "$node.pem" 2>/dev/null \
            -extfile /dev/fd/3 3<<EOF
subjectAltName = DNS:$node, DNS:localhost, IP:127.0.0.1
EOF
done

[ -s client.token ] || secret >client.token
[ -s tokens ] || echo "demo $(cat client.token)" >tokens
[ -s server.toml ] || printf 'token_file = "%s/tokens"\npeer_token = "%s"\n' "$PWD" "$(secret)" >server.toml
echo "certificates of $* and tokens are in $PWD"
