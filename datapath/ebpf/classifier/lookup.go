package classifier

// Packet is what a forest is asked for.
type Packet struct {
	Src, Dst     [2]uint64 // as in Rule
	SPort, DPort uint16
	Proto        uint8
	Six          bool
}

func (p *Packet) fields() (f [16]uint32) {
	r := Rule{Src: p.Src, Dst: p.Dst}
	w := r.words()
	copy(f[:], w[:])
	f[fieldSPort], f[fieldDPort], f[fieldProto] = uint32(p.SPort), uint32(p.DPort), uint32(p.Proto)
	return f
}

// Matches reports whether a packet lies in a rule, as far as a view can tell.
func (r *Rule) Matches(p *Packet, ports, proto bool) bool {
	if r.Family != 0 && (r.Family == 6) != p.Six {
		return false
	}
	if proto && r.Proto != 0 && r.Proto != p.Proto {
		return false
	}
	if !inPrefix(&p.Src, &r.Src, r.SrcLen) || !inPrefix(&p.Dst, &r.Dst, r.DstLen) {
		return false
	}
	if !ports || r.Flags&(SrcPorts|DstPorts) == 0 {
		return true
	}
	if !hasPorts(uint32(p.Proto)) {
		return false
	}
	if r.Flags&SrcPorts != 0 && (p.SPort < r.SPortFirst || p.SPort > r.SPortLast) {
		return false
	}
	return r.Flags&DstPorts == 0 || p.DPort >= r.DPortFirst && p.DPort <= r.DPortLast
}

func inPrefix(a, p *[2]uint64, bits uint8) bool {
	switch {
	case bits == 0:
		return true
	case bits <= 64:
		return (a[0]^p[0])>>(64-bits) == 0
	}
	return a[0] == p[0] && (a[1]^p[1])>>(128-bits) == 0
}

// Lookup finds the rule that decides on a packet, or nil, in the way of the
// programs; steps is the number of cells it read.
func (f *Forest) Lookup(p *Packet, v View) (hit *Rule, steps int) {
	first, count := f.Cells[rootCell][2*v], f.Cells[rootCell][2*v+1]
	fs := p.fields()
	words := [8]uint32(fs[:8])
	steps = 1
	for i := first; i < first+count; i++ {
		t := &f.Cells[i]
		steps++
		if hit != nil && t[tupleBest] >= hit.Order {
			break
		}
		masks := [8]uint32(t[tupleMasks : tupleMasks+8])
		h := hash(&words, &masks, p.Six, t[tupleSeed])
		slot := uint32(h) & t[tupleSlots]
		c := &f.Cells[t[tupleBase]+slot/8]
		steps++
		ref, tag := c[2*(slot%8)], c[2*(slot%8)+1]
		if ref == 0 || tag != 0 && tag != tagOf(h) {
			continue
		}
		for ref != 0 && ref&leafBit == 0 {
			n := &f.Cells[ref]
			steps++
			at := 0
			for _, k := range n[nodeKeys:nodeKids] {
				if fs[n[nodeField]] > k {
					at++
				}
			}
			ref = n[nodeKids+at]
		}
		if ref == 0 {
			continue
		}
		for j := range ref>>leafShift&15 + 1 {
			r := RuleOf(&f.Cells[ref&leafCell+j])
			steps++
			if hit != nil && r.Order >= hit.Order {
				break
			}
			if r.Matches(p, true, true) {
				hit = r
				break
			}
		}
	}
	return hit, steps
}
