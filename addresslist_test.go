package onpath

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// randomList has n different addresses.
func randomList(r *rand.Rand, n int, six bool) string {
	var b strings.Builder
	for range n {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:], 0x2000<<48|r.Uint64()>>4)
		p := netip.PrefixFrom(netip.AddrFrom16(a), 64)
		if !six {
			p = netip.PrefixFrom(netip.AddrFrom4([4]byte(a[4:8])), 32)
		}
		b.WriteString(p.String() + "\n")
	}
	return b.String()
}

// TestAddressListPacked: a list is the same after it was packed, and a large one fits
// into an object.
func TestAddressListPacked(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, text := range []string{
		"", "0.0.0.0/0\n::/0", "192.0.2.1\n2001:db8::/32\n10.0.0.0/9\n::/8\n255.255.255.255", randomList(r, 250_000, false),
		randomList(r, 2_000, true),
	} {
		l, _, err := ReadAddresses(text)
		if err != nil {
			t.Fatal(err)
		}
		packed, err := PackAddresses(l)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d entries, %d bytes as text, %d packed", len(l), len(text), len(packed))
		again, _, err := ReadAddresses(packed)
		if err != nil || !slices.Equal(again, l) {
			t.Errorf("%.60q: %d entries came back of %d: %v", text, len(again), len(l), err)
		}
		if half := packed[:len(packed)-len(packed)/4]; len(l) > 2 {
			if _, _, err := ReadAddresses(half); err == nil {
				t.Error("a packed list without its end is taken")
			}
		}
	}
}

// TestAddressListFormats: public lists are read as they are published, and what holds
// another entry stands for both.
func TestAddressListFormats(t *testing.T) {
	l, held, err := ReadAddresses("\ufeff# IPsum\n192.0.2.1\t9\r\n192.0.2.2 4 \n\n; Spamhaus\n198.51.100.0/24 ; SBL1\n" +
		"198.51.100.7\n192.0.2.1\n2001:db8::/32 ; SBL2\n  203.0.113.9 # mine")
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	for _, p := range l {
		got += Prefix{p}.String() + " "
	}
	if want := "192.0.2.1 192.0.2.2 198.51.100.0/24 203.0.113.9 2001:db8::/32 "; got != want || held != 2 {
		t.Errorf("read %q, %d left out; must be %q, 2", got, held, want)
	}
}

// TestAddressListErrors: a fault names line and value, a limit its number.
func TestAddressListErrors(t *testing.T) {
	many := randomList(rand.New(rand.NewPCG(1, 1)), MaxListEntries+100, false)
	for text, want := range map[string]string{
		"192.0.2.1\nbad.example 3":                 `line 2: "bad.example"`,
		"# x\n\n10.0.0.1/8":                        `line 3: "10.0.0.1/8" has host bits set; write 10.0.0.0/8`,
		"192.0.2.1 192.0.2.2":                      `"192.0.2.2" stands behind`,
		"192.0.2.1-192.0.2.9":                      `line 1: "192.0.2.1-192.0.2.9"`,
		"fe80::1%eth0":                             "line 1",
		many:                                       "at most 262144",
		packedList + "3 AAAA":                      "broken",
		packedList + "-1 ":                         "broken",
		packedList + "9999999999 ":                 "broken",
		packedList + strings.Repeat("1", 1<<20):    "broken",
		packedList + "2 " + strings.Repeat("/", 8): "broken",
	} {
		if _, _, err := ReadAddresses(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q gives %v, must speak of %s", text, err, want)
		}
	}
	l, _, err := ReadAddresses(randomList(rand.New(rand.NewPCG(1, 2)), 200_000, true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := PackAddresses(l); err == nil || !strings.Contains(err.Error(), "at most 901120") {
		t.Errorf("a list that is too large when packed gives %v", err)
	}
}
