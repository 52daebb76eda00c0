package publicaddr

import (
	"net/netip"
	"testing"
)

func TestIs(t *testing.T) {
	for text, public := range map[string]bool{
		"8.8.8.8": true, "2001:4860:4860::8888": true, "203.0.113.7": true, "::ffff:8.8.8.8": true,
		"127.8.8.8": false, "::1": false, "0.0.0.0": false, "::": false, "10.2.0.1": false, "192.168.1.1": false, "172.31.0.1": false,
		"169.254.169.254": false, "fe80::1%eth0": false, "fd00:ec2::254": false, "100.100.100.200": false, "168.63.129.16": false,
		"224.0.0.1": false, "255.255.255.255": false, "::ffff:127.0.0.1": false, "64:ff9b::7f00:1": false, "2002:7f00:1::": false,
		"::127.0.0.1": false,
	} {
		if got := Is(netip.MustParseAddr(text)); got != public {
			t.Errorf("%s: %t", text, got)
		}
	}
}
