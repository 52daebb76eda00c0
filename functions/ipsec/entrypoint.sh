#!/bin/sh
# A half of an IPsec tunnel: what comes in by eth0 is encrypted for the partner, what the
# partner sends is decrypted and goes out by eth0. The kernel's ESP where there is one, else
# strongSwan's own in user space (ESP in UDP, by the device ipsec0).
set -eu
news=/run/onpath/pair.json
cipher=${CIPHER:-aes128gcm16}
if [ ! -e "$news" ]; then
	echo 'ipsec: it has no partner: name it in a chain with pair: true, at two cloudlets' >&2
	exit 2
fi

# The file has one value a line.
value() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" "$news" | head -n 1; }
addresses() { awk -v want="$1" '/"partner"/ {p = 1} /"addresses"/ {on = (p == want); next} /\]/ {on = 0} on {gsub(/[",[:space:]]/, ""); print}' "$news"; }

kernel_esp() {
	ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 0x101 mode tunnel \
		aead 'rfc4106(gcm(aes))' 0x0102030405060708090a0b0c0d0e0f1011121314 128 2>/dev/null &&
		ip xfrm state flush && ip link add ipsec0 type xfrm dev pair0 if_id 1 2>/dev/null
}

if kernel_esp; then
	ours=no extra='if_id_in = 1
      if_id_out = 1'
else
	ours=yes extra=''
fi
cat >/etc/strongswan.d/onpath.conf <<END
charon {
  install_routes = no
  install_virtual_ip = no
  retransmit_timeout = 0.5
  retransmit_base = 1.4
  retransmit_tries = 4
  plugins {
    kernel-libipsec {
      load = $ours
      allow_peer_ts = yes
    }
  }
}
charon-systemd {
  journal {
    default = -1
  }
  filelog {
    stderr {
      default = 0
    }
  }
}
END

write() {
	side=$(value side)
	if [ "$side" = a ]; then other=b; else other=a; fi
	umask 077
	cat >/etc/swanctl/swanctl.conf <<END
connections {
  pair {
    version = 2
    local_addrs = $(addresses 0 | head -n 1)
    remote_addrs = $(addresses 1 | head -n 1)
    proposals = aes128-sha256-ecp256,aes128-sha256-modp2048
    unique = replace
    dpd_delay = 3s
    local {
      auth = psk
      id = $side.pair
    }
    remote {
      auth = psk
      id = $other.pair
    }
    children {
      all {
      local_ts = 0.0.0.0/0,::/0
      remote_ts = 0.0.0.0/0,::/0
      esp_proposals = $cipher
      $extra
      }
    }
  }
}
secrets {
  ike-pair {
    id-a = a.pair
    id-b = b.pair
    secret = "$(value secret)"
  }
}
END
	umask 022
	told=$(cksum <"$news")
}
write

# Nothing that comes in goes out as it came: it leaves encrypted or not at all.
for f in -4 -6; do
	ip $f rule add pref 10 iif eth0 lookup 100 2>/dev/null || continue # without IPv6
	ip $f rule add pref 11 lookup main # before the routes that strongSwan's ESP adds
	ip $f route replace unreachable default metric 4000000 table 100
done

/usr/sbin/charon-systemd &
charon=$!
trap 'kill $charon; wait $charon || true; exit 0' TERM INT
until swanctl --load-all >/dev/null 2>&1 && ip link show ipsec0 >/dev/null 2>&1; do
	kill -0 $charon || exit 1
	sleep 0.1
done
ip link set ipsec0 mtu $(($(value mtu) - 50)) up
for f in -4 -6; do
	ip $f route replace default dev ipsec0 table 100 2>/dev/null || true
done
echo "ipsec: side $side, $cipher, ESP of the $([ $ours = yes ] && echo function || echo kernel)"

up() { swanctl --list-sas --child all 2>/dev/null | grep -q INSTALLED; }
lacks=0
while kill -0 $charon 2>/dev/null; do
	if [ "$(cksum <"$news")" != "$told" ]; then
		write
		swanctl --load-all >/dev/null 2>&1 || true
		swanctl --terminate --ike pair --force --timeout 1 >/dev/null 2>&1 || true
	fi
	if up; then
		touch /run/ready
		lacks=0
	else
		rm -f /run/ready
		lacks=$((lacks + 1))
		# One side begins; the other one if that has not come to anything.
		if [ "$side" = a ] || [ $((lacks % 10)) = 9 ]; then
			swanctl --initiate --child all --timeout 2 >/dev/null 2>&1 || true
		fi
	fi
	sleep 0.3 &
	wait $! || true
done
exit 1
