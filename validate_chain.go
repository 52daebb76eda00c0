package onpath

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// DefaultAdopt is how long connections older than their chain are passed by.
const DefaultAdopt = Duration(time.Minute)

// Validate implements Object.
func (h *Hosts) Validate() error {
	v := begin(h, &h.TypeMeta)
	s := &h.Spec
	if s.FromFile != "" {
		v.add("spec.fromFile", "use onpath apply, or send what is in it as addresses",
			"%s lies on the client, which has to read it", quote(s.FromFile))
	}
	s.Addresses = v.prefixes("spec.addresses", s.Addresses, maxHosts)
	s.Virtual = v.prefixes("spec.virtual", s.Virtual, maxPrefixes)
	for i, p := range s.Virtual {
		if slices.ContainsFunc(s.Addresses, func(a Prefix) bool { return a.Overlaps(p.Prefix) }) {
			v.add(index("spec.virtual", i), "take it out of one of them", "%s is in addresses too", p)
		}
	}
	switch {
	case s.Node != "" && (len(s.Addresses) > 0 || len(s.Virtual) > 0):
		v.add("spec", "keep one of them", "has both addresses and node")
	case s.Node != "":
		v.name("spec.node", s.Node)
	case len(s.Addresses) == 0 && len(v.errs) == 0:
		v.add("spec.addresses", "write addresses: […], or node: NAME", "is missing")
	}
	return v.err()
}

// prefixes checks a set of prefixes and puts it into order.
func (v *validation) prefixes(at string, list []Prefix, most int) []Prefix {
	if len(list) > most {
		v.add(at, "write fewer, larger ones", "%d prefixes are too many; at most %d", len(list), most)
		return list
	}
	for i, p := range list {
		if why := unsteerable(p.Prefix); why != "" {
			v.add(index(at, i), "", "%s", why)
		}
	}
	return sorted(list, func(a, b Prefix) int { return a.Prefix.Compare(b.Prefix) })
}

// unsteerable says why no chain can select p; "" if one can.
func unsteerable(p netip.Prefix) string {
	a := p.Addr()
	switch {
	case !p.IsValid() || p != p.Masked() || a.Is4In6():
		return "is not an IP prefix"
	case a.IsMulticast():
		return fmt.Sprintf("%s is multicast, which is never steered; leave it out", p)
	case a.IsLoopback():
		return fmt.Sprintf("%s is a loopback address, which never leaves its machine", p)
	case a.IsLinkLocalUnicast():
		return fmt.Sprintf("%s is link-local, which is never steered; leave it out", p)
	case a.IsUnspecified() && p.IsSingleIP():
		return fmt.Sprintf("%s is no host's address", p.Addr())
	}
	return ""
}

// Validate implements Object.
func (c *Chain) Validate() error {
	v := begin(c, &c.TypeMeta)
	s := &c.Spec
	if enum(v, "spec.tier", &s.Tier, TierTenant, TierTenant, TierOperator) && s.Tier == TierOperator &&
		c.Metadata.Tenant != OperatorTenant {
		v.add("spec.tier", "write metadata.tenant: "+OperatorTenant+", or tier: tenant",
			"a chain of tier operator belongs to tenant %s, not %s", OperatorTenant, quote(c.Metadata.Tenant))
	}
	v.number("spec.priority", s.Priority, -MaxPriority, MaxPriority)
	v.endpoints("spec.from", &s.From, c.Metadata.Tenant)
	v.endpoints("spec.to", &s.To, c.Metadata.Tenant)
	if names := v.names("spec.at.cloudlets", s.At.Cloudlets); s.Pair() == nil { // a pair's stand in the order of its sides
		s.At.Cloudlets = names
	}
	f := families(s.From.Prefixes).both(families(s.To.Prefixes))
	if f == noFamily {
		v.add("spec.to", "write prefixes of one version on both sides, or of both",
			"spec.from has %s addresses and spec.to has %s: no packet goes from one to the other",
			families(s.From.Prefixes), families(s.To.Prefixes))
	}
	v.selectors("spec.select", s.Select, f, s)
	v.through(c, f)
	validatePair(v, c)
	enum(v, "spec.exit", &s.Exit, ExitEntry, ExitEntry, ExitLast, ExitNone)
	enum(v, "spec.direction", &s.Direction, DirectionBoth, DirectionBoth, DirectionForward)
	if s.Adopt == nil {
		s.Adopt = new(Duration)
		if *s.Adopt = DefaultAdopt; s.Pair() != nil && s.Pair().None != NoneBypass {
			*s.Adopt = 0 // what is older than the pair does not go on in clear
		}
	}
	quantity(v, "spec.adopt", *s.Adopt, 0, day)
	s.Idle.validate(v, "spec.idle")
	enum(v, "spec.existing", &s.Existing, ExistingPass, ExistingPass, ExistingCut)
	if s.Distribution != "" { // empty stays so: objects of before are as they were
		enum(v, "spec.distribution", &s.Distribution, "", DistributionUniform, DistributionNetwork)
	}
	if s.Distribution == DistributionNetwork && s.Exit == ExitLast && s.Direction != DirectionForward {
		v.add("spec.distribution", "take it out, or write direction: forward",
			"with exit: last answers find their instances by the element's own weights alone")
	}
	v.scaling("spec.scaling", s.Scaling, c)
	return v.err()
}

func (v *validation) endpoints(at string, e *Endpoints, tenant string) {
	given := 0
	for _, is := range []bool{e.Any, len(e.Prefixes) > 0, e.Hosts != "", e.Deployment != ""} {
		if is {
			given++
		}
	}
	switch {
	case given == 0:
		forms := "any, {prefixes: […]}, {hosts: NAME} or {deployment: NAME}"
		if at == "spec.to" { // a chain does not lead to a deployment
			forms = "any, {prefixes: […]} or {hosts: NAME}"
		}
		v.add(at, "write "+forms, "is missing")
	case given > 1:
		v.add(at, "keep one of them", "is more than one of any, prefixes, hosts and deployment")
	}
	e.Prefixes = v.prefixes(at+".prefixes", e.Prefixes, maxPrefixes)
	if e.Hosts != "" {
		v.ref(at+".hosts", &e.Hosts, "Hosts", tenant)
	}
	if e.Deployment != "" {
		v.ref(at+".deployment", &e.Deployment, "deployment", tenant)
	}
}

// family is a set of IP versions.
type family uint8

const (
	noFamily family = 0
	family4  family = 1
	family6  family = 2
)

// families are the versions in a list of prefixes; an empty list means all.
func families(list []Prefix) family {
	if len(list) == 0 {
		return family4 | family6
	}
	f := noFamily
	for _, p := range list {
		if p.Addr().Is4() {
			f |= family4
		} else {
			f |= family6
		}
	}
	return f
}

func (f family) both(o family) family { return f & o }

func (f family) String() string {
	return [...]string{"no", "IPv4", "IPv6", "IPv4 and IPv6"}[f&3]
}

// selectors checks the selectors of a chain or an element; f is what the ends
// of the chain leave of IP versions.
func (v *validation) selectors(at string, list []Selector, f family, c *ChainSpec) {
	if len(list) > maxSelectors {
		v.add(at, "", "%d entries are too many; at most %d", len(list), maxSelectors)
		return
	}
	for i := range list {
		v.selector(index(at, i), &list[i], f, c)
	}
}

func (v *validation) selector(at string, s *Selector, f family, c *ChainSpec) {
	v.protocol(at+".protocol", s)
	s.SourcePorts = v.ports(at+".sourcePorts", s.SourcePorts, s.Protocol)
	s.DestinationPorts = v.ports(at+".destinationPorts", s.DestinationPorts, s.Protocol)
	s.Sources = v.prefixes(at+".sources", s.Sources, maxPrefixes)
	s.Destinations = v.prefixes(at+".destinations", s.Destinations, maxPrefixes)
	src, dst := families(s.Sources), families(s.Destinations)
	if f != noFamily && src.both(dst).both(f) == noFamily {
		where, has, other := at+".destinations", dst, f.both(src)
		if src.both(f) == noFamily {
			where, has, other = at+".sources", src, f
		}
		v.add(where, "write prefixes of one IP version", "no packet can match: %s addresses here, %s at the other end", has, other)
		return
	}
	v.within(at+".sources", s.Sources, "spec.from", c.From.Prefixes)
	v.within(at+".destinations", s.Destinations, "spec.to", c.To.Prefixes)
}

// within refuses a selector that lies outside of the end it narrows.
func (v *validation) within(at string, list []Prefix, end string, outer []Prefix) {
	if len(outer) == 0 {
		return
	}
	ends := widest(outer)
	for i, p := range list {
		if !meets(ends, p.Prefix) {
			v.add(index(at, i), "write a part of "+end, "no packet can match: %s lies outside of %s", p, end)
		}
	}
}

// widest are the prefixes of a list that lie in no other, in order.
func widest(list []Prefix) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(list))
	for _, p := range list {
		out = append(out, p.Prefix.Masked())
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	kept := out[:0]
	for _, p := range out {
		if n := len(kept); n == 0 || !kept[n-1].Overlaps(p) {
			kept = append(kept, p)
		}
	}
	return kept
}

// meets reports whether one of such prefixes has an address in common with p:
// only those beside its place can.
func meets(ends []netip.Prefix, p netip.Prefix) bool {
	i, _ := slices.BinarySearchFunc(ends, p.Masked(), netip.Prefix.Compare)
	return i < len(ends) && ends[i].Overlaps(p) || i > 0 && ends[i-1].Overlaps(p)
}

func (v *validation) protocol(field string, s *Selector) {
	if s.Protocol == "" {
		return
	}
	n, ok := s.Protocol.known()
	if !ok {
		v.add(field, "", "%s is not a protocol (tcp, udp, icmp, or a number up to 255)", quote(string(s.Protocol)))
		v.errs[len(v.errs)-1].Remedy = meant(string(s.Protocol), []string{"tcp", "udp", "icmp"})
		return
	}
	switch n {
	case 6:
		s.Protocol = "tcp"
	case 17:
		s.Protocol = "udp"
	}
}

func protocolNumber(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 8)
	return int(n), err == nil
}

// ports checks a set of port ranges and puts it into order.
func (v *validation) ports(at string, list []PortRange, p Protocol) []PortRange {
	if len(list) == 0 {
		return nil
	}
	if len(list) > maxPorts {
		v.add(at, "write ranges", "%d entries are too many; at most %d", len(list), maxPorts)
		return list
	}
	n, known := p.known()
	if p != "" && known && !slices.Contains([]int{6, 17, 132, 136}, n) { // TCP, UDP, SCTP, UDP-Lite
		v.add(at, "take it out, or write protocol: tcp or udp", "protocol %s has no ports", p)
	}
	for i, r := range list {
		if r.Last < r.First {
			v.add(index(at, i), fmt.Sprintf("write %d-%d", r.Last, r.First), "the range ends before it begins")
		}
	}
	return sorted(list, func(a, b PortRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
}

// through checks the elements, and that none occurs twice: an instance could
// not tell the first passage of a flow from the second.
func (v *validation) through(c *Chain, f family) {
	s := &c.Spec
	if n := len(s.Through); n < 1 || n > MaxElements {
		if n == 0 {
			v.add("spec.through", "write at least one {function: NAME} or {deployment: NAME}", "has no element")
			return
		}
		v.add("spec.through", "split the chain", "%d elements are too many; at most %d", n, MaxElements)
		return
	}
	seen := map[Ref]int{}
	for i := range s.Through {
		at := index("spec.through", i)
		d := v.element(at, &s.Through[i], c, f)
		if d == "" {
			continue
		}
		if first, ok := seen[d]; ok {
			v.add(at, "make a second deployment for it", "the chain is a loop: deployment %s is %s already", d,
				index("spec.through", first))
		}
		seen[d] = i
		for _, end := range []struct {
			field string
			ref   Ref
		}{{"spec.from", s.From.Deployment}, {"spec.to", s.To.Deployment}} {
			if end.ref == d {
				v.add(at, "leave one of the two out", "the chain is a loop: deployment %s is its %s too", d, end.field)
			}
		}
	}
}

// element checks one element and returns its deployment.
func (v *validation) element(at string, e *Element, c *Chain, f family) Ref {
	d := v.elementDeployment(at, e, c)
	enum(v, at+".mode", &e.Mode, ModeInline, ModeInline, ModeMirror)
	v.selectors(at+".select", e.Select, f, &c.Spec)
	v.elementFailure(at, e)
	for _, n := range sortedKeys(e.Weights) {
		v.name(key(at+".weights", n), n)
		v.number(key(at+".weights", n), e.Weights[n], 0, MaxWeight)
	}
	v.weightsFrom(at+".weightsFrom", e, &c.Spec)
	validateTogether(v, at+".together", e, &c.Spec)
	return d
}

// validateTogether refuses what would lead flows of one part to several instances.
func validateTogether(v *validation, at string, e *Element, s *ChainSpec) {
	switch {
	case e.Together == "" || !enum(v, at, &e.Together, "", TogetherFlow, TogetherSource, TogetherHosts) || e.Together.Apart():
	case len(e.WeightsFrom) > 0:
		v.add(at, "take out one of the two", "contradicts weightsFrom, which chooses by where a flow comes from")
	case e.Pair:
		v.add(at, "take it out", "each half of a pair chooses its instances by itself")
	case s.Exit == ExitLast && s.Direction != DirectionForward:
		v.add(at, "take it out, or write direction: forward",
			"with exit: last answers find their instances by the element's own weights alone")
	}
}

func (v *validation) weightsFrom(at string, e *Element, s *ChainSpec) {
	if len(e.WeightsFrom) > 0 && e.Mode == ModeMirror {
		v.add(at, "take it out", "mirrors get copies by their own weights, wherever a flow comes from")
	}
	if len(e.WeightsFrom) > 0 && s.Exit == ExitLast && s.Direction != DirectionForward {
		v.add(at, "take it out, or write direction: forward",
			"with exit: last answers find their instances by the element's own weights alone")
	}
	for _, from := range sortedKeys(e.WeightsFrom) {
		row := key(at, from)
		v.name(row, from)
		for _, n := range sortedKeys(e.WeightsFrom[from]) {
			v.name(key(row, n), n)
			v.number(key(row, n), e.WeightsFrom[from][n], 1, MaxWeight)
		}
	}
}

func (v *validation) elementDeployment(at string, e *Element, c *Chain) Ref {
	switch {
	case e.Deployment == "" && e.Function == "":
		v.add(at, "write deployment: NAME or function: NAME", "names neither a deployment nor a function")
		return ""
	case e.Deployment != "" && e.Function != "":
		v.add(at, "keep one of them", "has both deployment and function")
		return ""
	case e.Deployment != "":
		v.notShort(at, e)
		if !v.ref(at+".deployment", &e.Deployment, "deployment", c.Metadata.Tenant) {
			return ""
		}
		return e.Deployment
	}
	v.instances(at+".instances", &e.Instances)
	v.reservation(at+".reservation", &e.Reservation, c.Metadata.Tenant)
	v.place(at+".place", &e.Place)
	v.env(at+".env", e.Env)
	v.files(at+".files", e.Files)
	if !v.ref(at+".function", &e.Function, "function", c.Metadata.Tenant) {
		return ""
	}
	name := ShortDeployment(c.Metadata.Name, e.Function)
	if len(name) > MaxDeploymentName {
		v.add(at+".function", "shorten one of the two names, or write a Deployment",
			"makes a deployment %s, whose name has %d characters; at most %d",
			quote(name), len(name), MaxDeploymentName)
	}
	return Ref(name)
}

// notShort refuses what belongs to the short form beside deployment.
func (v *validation) notShort(at string, e *Element) {
	for _, f := range []struct {
		name  string
		given bool
	}{
		{"instances", e.Instances != nil},
		{"reservation", e.Reservation != ""},
		{"place", len(e.Place.Cloudlets) > 0 || len(e.Place.Nodes) > 0 || e.Place.Spread != ""},
		{"drain", e.Drain != 0},
		{"env", len(e.Env) > 0},
		{"files", len(e.Files) > 0},
	} {
		if f.given {
			v.add(at+"."+f.name, "write it in the Deployment",
				"%s belongs to the short form {function: NAME}; this element names a deployment", f.name)
		}
	}
}

// elementFailure checks lost and none. Lost stays empty where it is not
// written: its default depends on the function's state.
func (v *validation) elementFailure(at string, e *Element) {
	none := NoneDrop
	if e.Mode == ModeMirror {
		none = NoneBypass
	}
	if enum(v, at+".none", &e.None, none, NoneDrop, NoneBypass) && e.Mode == ModeMirror && e.None == NoneDrop {
		v.add(at+".none", "take it out", "a mirror gets copies: it cannot drop, traffic goes on without it")
	}
	if e.Lost == "" {
		return
	}
	if enum(v, at+".lost", &e.Lost, "", LostRepick, LostReset) && e.Mode == ModeMirror && e.Lost == LostReset {
		v.add(at+".lost", "take it out", "a mirror gets copies: its loss cannot reset a connection")
	}
}
