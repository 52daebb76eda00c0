package pool

import (
	"slices"
	"testing"
	"time"

	"github.com/onpath/onpath"
)

// London is nearer to Paris on the map; where round trips are measured, they decide.
func TestNearByMeasurement(t *testing.T) {
	p := &promises{cloudlets: map[string]Cloudlet{
		"fra": {Location: onpath.Location{Latitude: 50, Longitude: 8.7}},
		"par": {Location: onpath.Location{Latitude: 48.9, Longitude: 2.3}},
		"lon": {Location: onpath.Location{Latitude: 51.5, Longitude: 0}},
	}}
	order := func(want ...string) {
		t.Helper()
		p.near, p.orders = nil, nil
		if got := p.orderFrom("par"); !slices.Equal(got, want) {
			t.Errorf("from par: %v, want %v", got, want)
		}
	}
	order("par", "lon", "fra")
	if rtt := p.distances().RoundTrip("par", "lon"); rtt < 3*time.Millisecond || rtt > 4*time.Millisecond { // 335 km
		t.Errorf("by location, Paris and London are %v apart", rtt)
	}
	lon := p.cloudlets["lon"]
	lon.RTT = map[string]time.Duration{"par": 30 * time.Millisecond} // measured from there only
	p.cloudlets["lon"] = lon
	order("par", "fra", "lon")
	par := p.cloudlets["par"]
	par.RTT = map[string]time.Duration{"fra": 40 * time.Millisecond, "lon": 30 * time.Millisecond}
	p.cloudlets["par"] = par
	order("par", "lon", "fra")
}
