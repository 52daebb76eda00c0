// Package near decides which cloudlet is the nearest to somebody, and by that where names
// of services lead: by round trips that were measured, else by what light takes between the
// places.
package near

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/onpath/onpath"
)

// Cloudlet is what tells near from far.
type Cloudlet struct {
	Location onpath.Location
	Prefixes []onpath.Prefix          // addresses of users who are near it
	RTT      map[string]time.Duration // measured, to other cloudlets
}

// Map is the cloudlets by name.
type Map map[string]Cloudlet

// Home is the cloudlet that says that users with addresses of p are near it, by the longest
// prefix; "": none does.
func (m Map) Home(p netip.Prefix) (home string) {
	bits := -1
	for name, cl := range m {
		for _, x := range cl.Prefixes {
			if x.Bits() <= p.Bits() && x.Contains(p.Addr()) && (x.Bits() > bits || x.Bits() == bits && name < home) {
				home, bits = name, x.Bits()
			}
		}
	}
	return home
}

// RoundTrip is the measured one between two cloudlets; where nobody measures, what light in
// a fibre takes at least between their locations.
func (m Map) RoundTrip(a, b string) time.Duration {
	if rtt := m[a].RTT[b]; rtt > 0 {
		return rtt
	}
	if rtt := m[b].RTT[a]; rtt > 0 {
		return rtt
	}
	const earthRadius, fibre = 6371e3, 2e8 // m, m/s
	way := distance(m[a].Location, m[b].Location) * earthRadius
	return time.Duration(2 * way / fibre * float64(time.Second))
}

// distance is along the surface of the earth, in radians.
func distance(a, b onpath.Location) float64 {
	rad := func(d float64) float64 { return d * math.Pi / 180 }
	φ1, φ2 := rad(a.Latitude), rad(b.Latitude)
	s, t := math.Sin((φ2-φ1)/2), math.Sin(rad(b.Longitude-a.Longitude)/2)
	return 2 * math.Asin(math.Min(1, math.Sqrt(s*s+math.Cos(φ1)*math.Cos(φ2)*t*t)))
}

// Order are the cloudlets by their distance from one, itself first; from "", which is
// nowhere, by name.
func (m Map) Order(home string) []string {
	far := map[string]time.Duration{home: -1}
	order := make([]string, 0, len(m))
	for name := range m {
		if order = append(order, name); name != home && home != "" {
			far[name] = m.RoundTrip(home, name)
		}
	}
	slices.SortFunc(order, func(a, b string) int { return cmp.Or(cmp.Compare(far[a], far[b]), cmp.Compare(a, b)) })
	return order
}
