#!/bin/sh
# enter.sh ENTRY... IMAGE: the forced command of `hpcml ssh-config` for a run in an image. It runs the client's command in the image.
# Programs that copy files run on the node: the image may lack them.
case ${SSH_ORIGINAL_COMMAND-} in
  internal-sftp*)
    for server in /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server /usr/lib/ssh/sftp-server /usr/libexec/sftp-server; do
      [ ! -x "$server" ] || exec "$server"
    done
    echo "hpcml: there is no sftp-server on $(uname -n)" >&2
    exit 69
    ;;
  'rsync --server '* | 'scp -'*) exec /bin/sh -c "$SSH_ORIGINAL_COMMAND" ;;
  '') SSH_ORIGINAL_COMMAND='command -v bash >/dev/null && exec bash; exec sh' ;;
esac
exec "$@" /bin/sh -c "$SSH_ORIGINAL_COMMAND" ssh
