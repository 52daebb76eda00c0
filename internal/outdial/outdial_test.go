package outdial

import (
	"net/netip"
	"testing"
)

// TestCheck: a name reaches no private network behind the node, unless its operator says so.
func TestCheck(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("203.0.113.8"), netip.MustParseAddr("10.9.0.1")}
	d := &Dialer{Setting: "node.fetchTargets", Own: func() []netip.Addr { return own }, Allowed: []netip.Prefix{
		netip.MustParsePrefix("10.9.0.0/16"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("fd00:9::/32"),
	}}
	for text, may := range map[string]bool{
		"203.0.113.7": true, "2001:4860:4860::8888": true, "10.9.0.2": true, "fd00:9::2": true,
		"203.0.113.8": false, "10.9.0.1": false, "127.0.0.1": false, "127.0.0.2": false, "::1": false, "0.0.0.0": false,
		"10.8.0.2": false, "192.168.1.1": false, "169.254.169.254": false, "168.63.129.16": false, "fe80::1": false,
		"fd00:8::2": false, "224.0.0.1": false,
	} {
		if err := d.check(netip.MustParseAddr(text)); (err == nil) != may {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestDial: what a name stands for is checked, not the name; nothing of this machine is dialed.
func TestDial(t *testing.T) {
	d := &Dialer{Setting: "node.fetchTargets"}
	for _, address := range []string{"localhost:1", "127.0.0.1:1", "[::1]:1", "0.0.0.0:1", "169.254.169.254:80", "[::ffff:127.0.0.1]:1"} {
		if c, err := d.DialContext(t.Context(), "tcp", address); err == nil {
			t.Errorf("%s is dialed: %v", address, c.RemoteAddr())
		}
	}
}
