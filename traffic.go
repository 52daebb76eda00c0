package onpath

import "time"

// Traffic is what the data paths carried in the second before Time.
type Traffic struct {
	Time      time.Time          `json:"time"`
	Chains    map[string]Carried `json:"chains"`    // by tenant/name: what entered it
	Instances map[string]Carried `json:"instances"` // by tenant/name: what they were given
	Nodes     map[string]Carried `json:"nodes"`     // what came in at their uplinks, or from their machines
	// Away are the nodes that did not answer, and why.
	Away map[string]string `json:"away,omitempty"`
}

// Carried is a rate of packets.
type Carried struct {
	Packets float64 `json:"packets"` // a second
	Bits    float64 `json:"bits"`    // a second, of IP
	// Dropped are packets a second by reason.
	Dropped map[DropReason]float64 `json:"dropped,omitempty"`
}

// OfTenant is the part of the traffic that a tenant may see.
func (t Traffic) OfTenant(tenant string) Traffic {
	own := func(all map[string]Carried) map[string]Carried {
		out := map[string]Carried{}
		for name, c := range all {
			if OwnedBy(name, tenant) {
				out[name] = c
			}
		}
		return out
	}
	t.Chains, t.Instances, t.Nodes, t.Away = own(t.Chains), own(t.Instances), map[string]Carried{}, nil
	return t
}
