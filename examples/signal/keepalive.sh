#!/bin/sh
# Beside a SIP server: at a user's first keep-alive it has the responder installed on the
# way to the user.
#
#   keepalive.sh LOG KEY REQUEST [ONPATH]
#
# LOG is what the server writes, with a line "keepalive from ADDRESS" for each that comes.
set -eu
log=$1 key=$2 request=$3 onpath=${4:-onpath} known=" "

tail -n +1 -F "$log" 2>/dev/null | while read -r line; do
	case $line in *"keepalive from "*) ;; *) continue ;; esac
	user=${line##*keepalive from }
	case $known in *" $user "*) continue ;; esac
	known="$known$user "
	"$onpath" signal setup --toward "$user" --key "$key" "$request" </dev/null || true
done
