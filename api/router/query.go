package router

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

// Values reads query parameters; the first wrong one stays in Err.
type Values struct {
	url.Values
	Err error
}

// Query reads those of the names; others are refused, as huma refuses them elsewhere.
func Query(r *http.Request, names ...string) *Values {
	v := &Values{Values: r.URL.Query()}
	for name := range v.Values {
		if !slices.Contains(names, name) {
			v.Err = onpath.Errorf(onpath.CodeInvalid, "unknown query parameter %s, only: %s", name, strings.Join(names, ", "))
		}
	}
	return v
}

// WithTuple adds the parameters of Tuple.
func WithTuple(names ...string) []string {
	return append(names, "protocol", "src", "dst", "srcPort", "dstPort")
}

func (v *Values) wrong(name, want string) {
	if v.Err == nil {
		v.Err = onpath.Errorf(onpath.CodeInvalid, "%s=%s is not %s", name, v.Get(name), want)
	}
}

// Integer is none if it is not given.
func (v *Values) Integer(name string, none int) int {
	if v.Get(name) == "" {
		return none
	}
	n, err := strconv.Atoi(v.Get(name))
	if err != nil {
		v.wrong(name, "a number")
	}
	return n
}

// Amount is an integer that is not negative.
func (v *Values) Amount(name string) int {
	n := v.Integer(name, 0)
	if n < 0 {
		v.wrong(name, "0 or more")
	}
	return n
}

// Boolean is false if it is not given.
func (v *Values) Boolean(name string) bool {
	if v.Get(name) == "" {
		return false
	}
	b, err := strconv.ParseBool(v.Get(name))
	if err != nil {
		v.wrong(name, "true or false")
	}
	return b
}

// Duration is zero if it is not given.
func (v *Values) Duration(name string) time.Duration {
	if v.Get(name) == "" {
		return 0
	}
	d, err := time.ParseDuration(v.Get(name))
	if err != nil || d <= 0 {
		v.wrong(name, "a time above 0, such as 90s, 5m or 1h30m")
	}
	return d
}

// Address is the zero one if it is not given.
func (v *Values) Address(name string) netip.Addr {
	if v.Get(name) == "" {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(v.Get(name))
	if err != nil {
		v.wrong(name, "an address")
	}
	return a.Unmap()
}

// Port is 0 if it is not given.
func (v *Values) Port(name string) uint16 {
	n := v.Integer(name, 0)
	if n < 0 || n > 65535 {
		v.wrong(name, "a port")
	}
	return uint16(n)
}

// Tuple is nil if no part of it is given.
func (v *Values) Tuple() *onpath.Tuple {
	p := v.Integer("protocol", 0)
	if p < 0 || p > 255 {
		v.wrong("protocol", "an IP protocol number")
	}
	t := onpath.Tuple{
		Protocol: uint8(p), Src: v.Address("src"), Dst: v.Address("dst"),
		SrcPort: v.Port("srcPort"), DstPort: v.Port("dstPort"),
	}
	if t == (onpath.Tuple{}) {
		return nil
	}
	return &t
}
