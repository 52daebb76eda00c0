package api

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
)

// values reads query parameters; the first wrong one stays in err.
type values struct {
	url.Values
	err error
}

// query reads those of the names; others are refused, as huma refuses them elsewhere.
func query(r *http.Request, names ...string) *values {
	v := &values{Values: r.URL.Query()}
	for name := range v.Values {
		if !slices.Contains(names, name) {
			v.err = onpath.Errorf(onpath.CodeInvalid, "unknown query parameter %s, only: %s", name, strings.Join(names, ", "))
		}
	}
	return v
}

// withTuple adds the parameters of tuple.
func withTuple(names ...string) []string {
	return append(names, "protocol", "src", "dst", "srcPort", "dstPort")
}

func (v *values) wrong(name, want string) {
	if v.err == nil {
		v.err = onpath.Errorf(onpath.CodeInvalid, "%s=%s is not %s", name, v.Get(name), want)
	}
}

func (v *values) integer(name string, none int) int {
	if v.Get(name) == "" {
		return none
	}
	n, err := strconv.Atoi(v.Get(name))
	if err != nil {
		v.wrong(name, "a number")
	}
	return n
}

// amount is an integer that is not negative.
func (v *values) amount(name string) int {
	n := v.integer(name, 0)
	if n < 0 {
		v.wrong(name, "0 or more")
	}
	return n
}

func (v *values) boolean(name string) bool {
	if v.Get(name) == "" {
		return false
	}
	b, err := strconv.ParseBool(v.Get(name))
	if err != nil {
		v.wrong(name, "true or false")
	}
	return b
}

// duration is zero if it is not given.
func (v *values) duration(name string) time.Duration {
	if v.Get(name) == "" {
		return 0
	}
	d, err := time.ParseDuration(v.Get(name))
	if err != nil || d <= 0 {
		v.wrong(name, "a time above 0, such as 90s, 5m or 1h30m")
	}
	return d
}

func (v *values) address(name string) netip.Addr {
	if v.Get(name) == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(v.Get(name))
	if err != nil {
		v.wrong(name, "an address")
	}
	return a.Unmap()
}

func (v *values) port(name string) uint16 {
	n := v.integer(name, 0)
	if n < 0 || n > 65535 {
		v.wrong(name, "a port")
	}
	return uint16(n)
}

// tuple is nil if no part of it is given.
func (v *values) tuple() *onpath.Tuple {
	p := v.integer("protocol", 0)
	if p < 0 || p > 255 {
		v.wrong("protocol", "an IP protocol number")
	}
	t := onpath.Tuple{
		Protocol: uint8(p), Src: v.address("src"), Dst: v.address("dst"),
		SrcPort: v.port("srcPort"), DstPort: v.port("dstPort"),
	}
	if t == (onpath.Tuple{}) {
		return nil
	}
	return &t
}
