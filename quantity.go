package onpath

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// CPU is processor time in thousandths of a core: "500m", "2", "1.5".
type CPU int64

// Size is an amount of bytes: "256Mi", "1Gi", "10G", "4096".
type Size int64

// Rate is a bit rate in bits per second: "1Gbit", "100Mbit", "64kbit".
type Rate int64

// Duration is a span of time as Go writes it: "100ms", "60s", "1h30m".
type Duration time.Duration

// Port is one TCP port; 0 in Go only, where none is named.
type Port uint16

// UnmarshalText refuses 0, which would stand for none.
func (p *Port) UnmarshalText(b []byte) error {
	n, err := strconv.ParseUint(string(b), 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not a port (write 1 to 65535)", b)
	}
	*p = Port(n)
	return nil
}

// UnmarshalJSON takes a plain number.
func (p *Port) UnmarshalJSON(b []byte) error { return textOrNumber(b, p) }

// PortRange is one port or a range, ends included: "80", "8000-8999".
type PortRange struct{ First, Last uint16 }

// MarshalText writes the shortest form that UnmarshalText reads.
func (c CPU) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// String is "500m" or "2".
func (c CPU) String() string {
	if c%1000 == 0 {
		return strconv.FormatInt(int64(c/1000), 10)
	}
	return strconv.FormatInt(int64(c), 10) + "m"
}

// UnmarshalText reads "500m", "2" or "1.5".
func (c *CPU) UnmarshalText(b []byte) error {
	s := string(b)
	scale := 1000.0
	num := s
	if t, ok := strings.CutSuffix(s, "m"); ok {
		num, scale = t, 1
	}
	v, err := parseNumber(num, scale)
	if err != nil {
		return fmt.Errorf("%q is not an amount of CPU (write 500m for half a core, or 2)", s)
	}
	*c = CPU(v)
	return nil
}

// UnmarshalJSON also takes a plain number of cores.
func (c *CPU) UnmarshalJSON(b []byte) error { return textOrNumber(b, c) }

var sizeUnits = []struct {
	suffix string
	factor float64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"k", 1e3}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"", 1},
}

// MarshalText writes the largest binary unit that divides s.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String is "256Mi" or "1000".
func (s Size) String() string {
	for i := 3; i >= 0; i-- {
		u := sizeUnits[i]
		if s != 0 && int64(s)%int64(u.factor) == 0 {
			return strconv.FormatInt(int64(s)/int64(u.factor), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// Rounded is s for people, in at most three digits: "1.5Ki", "39.1Mi".
func (s Size) Rounded() string {
	v, units := float64(s), []string{"", "Ki", "Mi", "Gi", "Ti"}
	i := 0
	for ; v >= 999.5 && i < len(units)-1; i++ {
		v /= 1024
	}
	return strings.TrimSuffix(fmt.Sprintf("%.3g", v), ".0") + units[i]
}

// UnmarshalText reads an amount of bytes.
func (s *Size) UnmarshalText(b []byte) error {
	for _, u := range sizeUnits {
		if num, ok := strings.CutSuffix(string(b), u.suffix); ok {
			v, err := parseNumber(num, u.factor)
			if err != nil {
				break
			}
			*s = Size(v)
			return nil
		}
	}
	return fmt.Errorf("%q is not an amount of bytes (write 256Mi, 1Gi or 4096)", b)
}

// UnmarshalJSON also takes a plain number of bytes.
func (s *Size) UnmarshalJSON(b []byte) error { return textOrNumber(b, s) }

var rateUnits = []struct {
	suffix string
	factor float64
}{
	{"Tbit", 1e12}, {"Gbit", 1e9}, {"Mbit", 1e6}, {"kbit", 1e3}, {"bit", 1},
}

// MarshalText writes the largest unit that divides r.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// String is "1Gbit" or "64kbit".
func (r Rate) String() string {
	for _, u := range rateUnits {
		if r != 0 && int64(r)%int64(u.factor) == 0 {
			return strconv.FormatInt(int64(r)/int64(u.factor), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(r), 10) + "bit"
}

// Rounded is r for people, in at most three digits: "1.5Gbit", "64kbit".
func (r Rate) Rounded() string {
	v, units := float64(r), []string{"bit", "kbit", "Mbit", "Gbit", "Tbit"}
	i := 0
	for ; v >= 999.5 && i < len(units)-1; i++ {
		v /= 1000
	}
	return fmt.Sprintf("%.3g", v) + units[i]
}

// UnmarshalText reads a bit rate; the unit is required.
func (r *Rate) UnmarshalText(b []byte) error {
	for _, u := range rateUnits {
		if num, ok := strings.CutSuffix(string(b), u.suffix); ok {
			v, err := parseNumber(num, u.factor)
			if err != nil {
				break
			}
			*r = Rate(v)
			return nil
		}
	}
	return fmt.Errorf("%q is not a bit rate (write 1Gbit, 100Mbit or 64kbit)", b)
}

// MarshalText writes the duration as Go does, without trailing zero units.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is "1m", not "1m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

// UnmarshalText reads a duration; negative ones are refused.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	if err != nil || v < 0 {
		return fmt.Errorf("%q is not a duration (write 100ms, 60s or 1h30m)", b)
	}
	*d = Duration(v)
	return nil
}

// MarshalText is "80" or "8000-8999".
func (p PortRange) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String is "80" or "8000-8999".
func (p PortRange) String() string {
	if p.First == p.Last {
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// UnmarshalText reads one port or a range.
func (p *PortRange) UnmarshalText(b []byte) error {
	first, last, isRange := strings.Cut(string(b), "-")
	a, err := strconv.ParseUint(first, 10, 16)
	z := a
	if err == nil && isRange {
		z, err = strconv.ParseUint(last, 10, 16)
	}
	if err == nil && z < a {
		return fmt.Errorf("%q begins above its end (write %d-%d)", b, z, a)
	}
	if err != nil {
		return fmt.Errorf("%q is not a port or a range of ports (write 80 or 8000-8999, between 0 and 65535)", b)
	}
	p.First, p.Last = uint16(a), uint16(z)
	return nil
}

// UnmarshalJSON also takes a plain number.
func (p *PortRange) UnmarshalJSON(b []byte) error { return textOrNumber(b, p) }

// Contains reports whether port lies in the range.
func (p PortRange) Contains(port uint16) bool { return p.First <= port && port <= p.Last }

// ParsePrefix reads "198.51.100.0/24" or a bare address, which means that one
// host. An IPv4-mapped IPv6 prefix and host bits behind the mask are refused.
func ParsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if a, bad := netip.ParseAddr(s); bad == nil && a.Is4In6() && a.Zone() == "" {
		return netip.Prefix{}, fmt.Errorf("%q is an IPv4 address written as IPv6 (write %s)", s, a.Unmap())
	}
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is not an address or prefix (write 198.51.100.10, 198.51.100.0/24 or 2001:db8::/32)", s)
	}
	if p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q has host bits set; write %s", s, p.Masked())
	}
	return p, nil
}

func parseNumber(s string, scale float64) (int64, error) {
	if s == "" || strings.ContainsAny(s, "eExXpPiInN_+-") { // no exponents, hex, infinities, signs
		return 0, strconv.ErrSyntax
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || v*scale > math.MaxInt64/2 {
		return 0, strconv.ErrRange
	}
	return int64(math.Round(v * scale)), nil
}

func textOrNumber(b []byte, to interface{ UnmarshalText([]byte) error }) error {
	if n := len(b); n > 1 && b[0] == '"' && b[n-1] == '"' && !bytes.ContainsRune(b, '\\') {
		return to.UnmarshalText(b[1 : n-1])
	}
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		return to.UnmarshalText([]byte(s))
	}
	return to.UnmarshalText(b)
}
