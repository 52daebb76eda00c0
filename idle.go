package onpath

import (
	"time"
)

// Idle is how long flows may rest before they are forgotten, by protocol. Both
// directions count as one flow: neither is forgotten while the other is used.
// Zero fields mean DefaultIdle's.
type Idle struct {
	// TCP is for connections that are established. Default 2h4m (RFC 5382
	// REQ-5 asks for at least that).
	TCP Duration `json:"tcp,omitempty"`
	// TCPTransitory is for connections that are partially open or closing:
	// packets or a FIN in one direction only. Default 4m (RFC 5382 REQ-5).
	TCPTransitory Duration `json:"tcpTransitory,omitempty"`
	// TCPClosed is for connections after a FIN in both directions; one that was reset
	// goes at once.
	// Default 2m, in which late segments have died (RFC 9293 §3.4.2).
	TCPClosed Duration `json:"tcpClosed,omitempty"`
	// UDP, also UDP-Lite. Default 5m (RFC 4787 REQ-5 recommends it, and asks
	// for at least two minutes).
	UDP Duration `json:"udp,omitempty"`
	// ICMP is for echo requests and replies. Default 60s (RFC 5508 REQ-2).
	ICMP Duration `json:"icmp,omitempty"`
	// Other is for all other protocols. Default 10m.
	Other Duration `json:"other,omitempty"`
}

// DefaultIdle are the idle times of chains that say nothing.
var DefaultIdle = Idle{
	TCP:           Duration(2*time.Hour + 4*time.Minute),
	TCPTransitory: Duration(4 * time.Minute),
	TCPClosed:     Duration(2 * time.Minute),
	UDP:           Duration(5 * time.Minute),
	ICMP:          Duration(time.Minute),
	Other:         Duration(10 * time.Minute),
}

// MinIdle and MaxIdle bound every idle time.
const (
	MinIdle = Duration(time.Second)
	MaxIdle = Duration(7 * 24 * time.Hour)
)

// idleTime is one of the times, with its name in YAML and the environment
// variable by which functions learn of it.
type idleTime struct {
	Name, Env string
	Time      Duration
}

// Each lists the times in the order of the fields.
func (i Idle) Each() []idleTime {
	return []idleTime{
		{"tcp", "ONPATH_IDLE_TCP", i.TCP},
		{"tcpTransitory", "ONPATH_IDLE_TCP_TRANSITORY", i.TCPTransitory},
		{"tcpClosed", "ONPATH_IDLE_TCP_CLOSED", i.TCPClosed},
		{"udp", "ONPATH_IDLE_UDP", i.UDP},
		{"icmp", "ONPATH_IDLE_ICMP", i.ICMP},
		{"other", "ONPATH_IDLE_OTHER", i.Other},
	}
}

func (i *Idle) each() []*Duration {
	return []*Duration{&i.TCP, &i.TCPTransitory, &i.TCPClosed, &i.UDP, &i.ICMP, &i.Other}
}

// OrDefault fills in what is not said. A default is never longer than what a
// flow that is better known may rest.
func (i Idle) OrDefault() Idle {
	byDefault := DefaultIdle
	if i.TCP != 0 {
		byDefault.TCPTransitory = min(byDefault.TCPTransitory, i.TCP)
	}
	if i.TCPTransitory != 0 {
		byDefault.TCPClosed = min(byDefault.TCPClosed, i.TCPTransitory)
	}
	byDefault.TCPClosed = min(byDefault.TCPClosed, byDefault.TCPTransitory)
	for n, d := range i.each() {
		if *d == 0 {
			*d = *byDefault.each()[n]
		}
	}
	return i
}

// Longest is, for each protocol, the longer time of two: what a function must keep
// to that serves several chains.
func (i Idle) Longest(o Idle) Idle {
	for n, d := range i.each() {
		*d = max(*d, *o.each()[n])
	}
	return i
}

// For is how long a flow may rest: its protocol, whether it was used in one
// direction only, and for TCP whether it is closing or closed. i must be full.
func (i Idle) For(protocol uint8, oneWay, closing, closed bool) time.Duration {
	switch protocol {
	case 6:
		switch {
		case closed:
			return time.Duration(i.TCPClosed)
		case oneWay || closing:
			return time.Duration(i.TCPTransitory)
		}
		return time.Duration(i.TCP)
	case 17, 136:
		return time.Duration(i.UDP)
	case 1, 58:
		return time.Duration(i.ICMP)
	}
	return time.Duration(i.Other)
}

// validate checks the times at a place, with what is not said filled in.
func (i Idle) validate(v *validation, at string) {
	full := i.OrDefault()
	for _, t := range full.Each() {
		quantity(v, at+"."+t.Name, t.Time, MinIdle, MaxIdle)
	}
	if full.TCPTransitory > full.TCP {
		v.add(at+".tcpTransitory", "make it at most tcp, which is "+full.TCP.String(),
			"connections that are not established would live longer (%s) than those that are", full.TCPTransitory)
	}
	if full.TCPClosed > full.TCPTransitory {
		v.add(at+".tcpClosed", "make it at most tcpTransitory, which is "+full.TCPTransitory.String(),
			"connections that are closed would live longer (%s) than those that close", full.TCPClosed)
	}
}
