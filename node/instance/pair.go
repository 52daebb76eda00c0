package instance

import (
	"encoding/json"
	"maps"
	"net/netip"
	"strconv"
	"strings"

	"github.com/onpath/onpath"
)

// A half of a pair is told of its partner: in environment variables when it starts, and in a
// file that follows changes while it runs.

// pairFile is where a half finds its partner.
const pairFile = "/run/onpath/pair.json"

// pairMode keeps the secret from others than the owner.
const pairMode = 0o600

// pairNews is the file.
type pairNews struct {
	Number    int          `json:"number"`
	Side      string       `json:"side"`
	Secret    string       `json:"secret"`
	Device    string       `json:"device"`
	MTU       int          `json:"mtu"`
	Addresses []netip.Addr `json:"addresses"` // own
	Partner   struct {
		Name      string       `json:"name"`
		Addresses []netip.Addr `json:"addresses"`
	} `json:"partner"`
}

func pairContent(p *onpath.InstancePlan) string {
	n := pairNews{Number: p.Pair.Number, Side: p.Pair.Side, Secret: p.Pair.Secret, Device: onpath.StretchDevice, MTU: p.Pair.MTU}
	for _, a := range p.Addresses {
		n.Addresses = append(n.Addresses, a.Addr())
	}
	n.Partner.Name, n.Partner.Addresses = p.Pair.Partner, p.Pair.Addresses
	data, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		panic("node: pair: " + err.Error()) // only addresses, numbers and names come here
	}
	return string(data) + "\n"
}

// paired adds the partner to what a half is started with. Variables that the function or
// its chain sets stay as they are.
func paired(s onpath.FunctionSpec, p *onpath.InstancePlan) onpath.FunctionSpec {
	if p.Pair == nil {
		return s
	}
	words := func(list []netip.Addr) string {
		var out []string
		for _, a := range list {
			out = append(out, a.String())
		}
		return strings.Join(out, " ")
	}
	var own []netip.Addr
	for _, a := range p.Addresses {
		own = append(own, a.Addr())
	}
	env := onpath.Env{
		"ONPATH_PAIR_NUMBER": strconv.Itoa(p.Pair.Number), "ONPATH_PAIR_SIDE": p.Pair.Side, "ONPATH_PAIR_SECRET": p.Pair.Secret,
		"ONPATH_PAIR_DEVICE": onpath.StretchDevice, "ONPATH_PAIR_MTU": strconv.Itoa(p.Pair.MTU),
		"ONPATH_PAIR_ADDRESSES": words(own), "ONPATH_PAIR_PARTNER": words(p.Pair.Addresses),
	}
	maps.Copy(env, s.Traits().Env)
	return s.With(env, map[string]onpath.File{pairFile: {Content: pairContent(p), Mode: pairMode}})
}

// tellPair tells a running half of another partner.
func (in inside) tellPair(p onpath.Process, plan onpath.InstancePlan) {
	if plan.Pair == nil {
		return
	}
	if err := renew(p.Pid(), in.s.part.Dir.NetNS(in.id), pairFile, pairContent(&plan), pairMode); err != nil && !ended(p) {
		in.s.part.Log.Warn("an instance does not learn of its partner", "instance", in.id, "err", err)
	}
}
