package nslp

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/onpath/onpath/signal/gist"
)

// far is a network without loss, of nodes that are each a round trip apart.
func far(t *testing.T, nodes int, trip time.Duration) *simulation {
	s := newSimulation(t, 1)
	s.loss, s.silent, s.route, s.delay, s.timeout = 0, false, 0, trip/2, 30*time.Second
	s.nodes, s.routes[0] = map[netip.Addr]*simulated{}, nil
	for i := range nodes {
		a := netip.AddrFrom4([4]byte{10, 20, 0, byte(1 + i)})
		s.nodes[a] = &simulated{s: s, address: a, port: gist.Port}
		s.nodes[a].boot()
		s.routes[0] = append(s.routes[0], a)
	}
	return s
}

// TestFarApart: requests work where each round trip takes as long as by a satellite or two,
// whether the user's machine tells of a closed port or not.
func TestFarApart(t *testing.T) {
	for _, trip := range []time.Duration{0, 600 * time.Millisecond, 2 * time.Second} {
		for nodes := range 4 {
			for _, silent := range []bool{false, true} {
				s := far(t, nodes, trip)
				s.silent = silent
				for _, c := range []struct {
					m    *Message
					want string
				}{{&Message{Type: Probe}, Absent}, {simSetup(), Installed}, {&Message{Type: Probe}, Present}, {&Message{Type: Remove, Module: "m"}, Removed}} {
					s.settled(c.m, c.want)
				}
				if t.Failed() {
					t.Fatalf("%d nodes, a round trip of %s, silent: %t", nodes, trip, silent)
				}
			}
		}
	}
}

// TestMuteEnd: a machine at the user's end that speaks GIST and answers no request hides no
// node before it, and the publisher learns what was installed.
func TestMuteEnd(t *testing.T) {
	for _, trip := range []time.Duration{0, 100 * time.Millisecond, 600 * time.Millisecond, 2 * time.Second} {
		for _, nodes := range []int{1, 2, 3, 12} {
			if trip > time.Second && nodes > 3 {
				continue
			}
			s := far(t, nodes, trip)
			g, err := gist.New(gist.Config{Peer: "mute", Random: bytesOf{s.random}, Source: func(netip.Addr) netip.Addr { return simUser }})
			if err != nil {
				t.Fatal(err)
			}
			s.mute, s.timeout = g, time.Minute
			for _, c := range []struct {
				m    *Message
				want string
			}{{simSetup(), Installed}, {&Message{Type: Probe}, Present}} {
				began := s.now
				r, err := s.request(c.m)
				what := fmt.Sprintf("%s past %d nodes, a round trip of %s", c.m.Type, nodes, trip)
				if err != nil || len(r.Stack) != nodes || r.Status != NoAnswer+s.routes[0][nodes-1].String() {
					t.Errorf("%s: %+v, %v, after %s", what, r, err, s.now.Sub(began))
					continue
				}
				for _, e := range r.Stack {
					if e.State != c.want {
						t.Errorf("%s: %+v", what, e)
					}
				}
				if took, most := s.now.Sub(began), 13*time.Second+time.Duration(nodes+4)*2*trip; took > most {
					t.Errorf("%s takes %s", what, took)
				}
				s.until(s.now.Add(time.Minute), never)
			}
		}
	}
}
