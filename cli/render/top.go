package render

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/onpath/onpath"
	"github.com/onpath/onpath/cli/table"
)

// Load is what one instance did and used at one moment, since it started.
type Load struct {
	Instance *onpath.Instance      `json:"-"`
	Name     string                `json:"name"` // tenant/name
	Node     string                `json:"node"`
	State    string                `json:"state"`
	Counters onpath.VportCounters  `json:"counters"`
	Back     *onpath.VportCounters `json:"back,omitempty"` // of the second side of a bridged one
	Usage    onpath.Usage          `json:"usage"`
	// Flows lead through it, each in both directions: as many as the node knows that
	// knows of most. What it gets copies of is known only where they are made.
	Flows uint64 `json:"flows"`
	// Away: its node did not answer, so nothing else of this is known.
	Away bool `json:"away,omitempty"`
}

// Rate is a Load against an earlier one of the same instance.
type Rate struct {
	Load
	CPU     float64 `json:"cpu"` // cores
	Packets float64 `json:"packetsPerSecond"`
	Bits    float64 `json:"bitsPerSecond"`
	Dropped uint64  `json:"dropped"` // since start, but for Ended
	// Ended are packets that a mirror sent, since start: they end at it by design.
	Ended uint64 `json:"ended,omitempty"`
}

// Loads joins instances with what their nodes say.
func Loads(instances []onpath.Object, counters map[string]onpath.Counters, usage map[string]map[string]onpath.Usage) []Load {
	var list []Load
	for _, o := range instances {
		i := o.(*onpath.Instance)
		name := i.Metadata.Tenant + "/" + i.Metadata.Name
		l := Load{Instance: i, Name: name, Node: i.Spec.Node, State: string(i.Status.State), Usage: usage[i.Spec.Node][name]}
		of, answered := counters[i.Spec.Node]
		l.Away = !answered
		l.Counters, _ = of.At(i.Spec.Vport)
		if i.Spec.Back != 0 {
			b, _ := of.At(i.Spec.Back)
			l.Back = &b
		}
		for _, c := range counters {
			l.Flows = max(l.Flows, c.Vports[i.Spec.Vport].Flows)
			if i.Spec.Back != 0 {
				l.Flows = max(l.Flows, c.Vports[i.Spec.Back].Flows)
			}
		}
		list = append(list, l)
	}
	return list
}

// Rates compares two moments, the busiest instance first. Without a former one
// rates are zero.
func Rates(before, after []Load, between time.Duration) []Rate {
	earlier := map[string]Load{}
	for _, l := range before {
		earlier[l.Name] = l
	}
	var list []Rate
	for _, l := range after {
		real, ended := lost(l.Counters.Dropped)
		r := Rate{Load: l, Dropped: drops(real), Ended: ended}
		if l.Back != nil {
			real, ended := lost(l.Back.Dropped)
			r.Dropped += drops(real)
			r.Ended += ended
		}
		if b, ok := earlier[l.Name]; ok && between > 0 && !b.Away && !l.Away && b.Instance.Metadata.UID == l.Instance.Metadata.UID {
			s := between.Seconds()
			was, is := b.delivered(), l.delivered()
			r.CPU = max(0, (l.Usage.CPU-b.Usage.CPU).Seconds()/s)
			r.Packets = less(is.Packets, was.Packets) / s
			r.Bits = 8 * less(is.Bytes, was.Bytes) / s
		}
		list = append(list, r)
	}
	slices.SortStableFunc(list, func(a, b Rate) int {
		return cmp.Or(cmp.Compare(b.Bits, a.Bits), cmp.Compare(b.CPU, a.CPU), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// delivered is what was handed to the instance, on both sides.
func (l Load) delivered() onpath.Tally {
	t := l.Counters.Out
	if l.Back != nil {
		t.Packets += l.Back.Out.Packets
		t.Bytes += l.Back.Out.Bytes
	}
	return t
}

// less is a-b, and 0 where a counter began again.
func less(a, b uint64) float64 {
	if a < b {
		return 0
	}
	return float64(a - b)
}

// Top is the table of the top command.
func Top(list []Rate) *table.Table {
	t := table.New("INSTANCE", "NODE", "STATE", ">CPU", ">MEMORY", ">PPS", ">BPS", ">FLOWS", ">DROPPED")
	for _, r := range list {
		if r.Away {
			t.Row(shortName(r.Name), r.Node, r.State, "-", "-", "-", "-", "-", "-")
			continue
		}
		t.Row(shortName(r.Name), r.Node, r.State, strconv.FormatFloat(100*r.CPU, 'f', 1, 64)+"%", Bytes(uint64(r.Usage.Memory)),
			Count(r.Packets), Count(r.Bits), strconv.FormatUint(r.Flows, 10), strconv.FormatUint(r.Dropped, 10))
	}
	return t
}

// TopNotes say in words what the table of the top command leaves out.
func TopNotes(list []Rate) (notes []string) {
	for _, r := range list {
		if r.Ended > 0 {
			notes = append(notes, fmt.Sprintf("%s %s; DROPPED leaves them out", shortName(r.Name),
				strings.TrimPrefix(ofMirror(r.Ended), "it ")))
		}
	}
	return notes
}

// Count rounds to three digits with k, M, G.
func Count(v float64) string {
	for _, unit := range []string{"", "k", "M", "G"} {
		if v < 999.5 {
			return strconv.FormatFloat(v, 'g', 3, 64) + unit
		}
		v /= 1000
	}
	return strconv.FormatFloat(v, 'g', 3, 64) + "T"
}
